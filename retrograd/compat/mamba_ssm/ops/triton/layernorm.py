"""`mamba_ssm.ops.triton.layernorm`: what `layer_norm` was called before mamba_ssm 2."""

from .layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn"]
