"""causal_conv1d in Triton, on every architecture."""
