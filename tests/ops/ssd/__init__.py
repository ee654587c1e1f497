"""The tests of `ssd` alone, and what the suites of all ops need of it."""
