"""The tests of `causal_conv1d` alone, and what the suites of all ops need of it."""
