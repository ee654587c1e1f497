"""rms_norm in Triton, on every architecture."""
