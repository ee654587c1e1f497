"""Kernels of attention in Triton, for all architectures."""
