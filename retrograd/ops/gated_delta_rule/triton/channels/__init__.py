"""Triton kernels of gated_delta_rule where each channel of K has a decay of its own."""
