"""linear in Triton, on every architecture."""
