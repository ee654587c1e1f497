"""Causal depthwise convolution along time. Start with README.md in this folder."""
