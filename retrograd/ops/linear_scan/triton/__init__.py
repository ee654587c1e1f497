"""linear_scan in Triton, on every architecture."""
