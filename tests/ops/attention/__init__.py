"""The tests of `attention` alone, and what the suites of all ops need of it."""
