"""Benchmarks by the rules of docs/design.md: median device time with a cold L2, peers and limits in the same run."""
