"""The tests of `selective_scan` alone, and what the suites of all ops need of it."""
