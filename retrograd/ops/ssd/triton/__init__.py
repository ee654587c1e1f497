"""ssd in Triton, on every architecture."""
