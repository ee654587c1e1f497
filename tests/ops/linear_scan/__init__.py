"""The tests of `linear_scan` alone, and what the suites of all ops need of it."""
