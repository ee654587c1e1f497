"""`mamba_ssm.ops.triton.layernorm`: the name of `layer_norm` before mamba_ssm 2."""

from .layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn"]
