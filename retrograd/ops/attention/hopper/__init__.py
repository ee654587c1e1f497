"""Gluon kernels of attention for NVIDIA's Hopper GPUs."""
