"""Gluon kernels of gated_delta_rule for Hopper where each channel of K has a decay of its own."""
