"""SSD's kernels for Hopper."""
