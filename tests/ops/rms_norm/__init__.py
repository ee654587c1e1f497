"""The tests of `rms_norm` alone, and what the suites of all ops need of it."""
