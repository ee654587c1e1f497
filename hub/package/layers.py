"""Layers whose `forward` replaces that of a model's own layer, under the names that transformers maps."""

from .mamba import (
    causal_conv1d_fn,
    causal_conv1d_update,
    mamba_chunk_scan_combined,
    mamba_inner_fn,
    mamba_split_conv1d_scan_combined,
    selective_scan_fn,
    selective_state_update,
)
from .norms import RMSNorm, RMSNormGated, RMSNormZeroCentered

__all__ = [
    "RMSNorm",
    "RMSNormGated",
    "RMSNormZeroCentered",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "mamba_chunk_scan_combined",
    "mamba_inner_fn",
    "mamba_split_conv1d_scan_combined",
    "selective_scan_fn",
    "selective_state_update",
]
