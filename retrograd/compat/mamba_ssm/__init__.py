"""Stand-in for the package mamba_ssm: functions, layers and the language model of Mamba and Mamba-2, and RMS norms."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from retrograd.compat.lazy import lazy

from .ops import selective_scan_interface
from .ops.selective_scan_interface import selective_scan_fn

__version__ = "2.3.2"  # the release with these signatures

__all__ = ["Mamba", "Mamba2", "MambaLMHeadModel", "mamba_inner_fn", "selective_scan_fn"]

__getattr__ = lazy(
    __name__,
    {
        "Mamba": "retrograd.compat.layers.mamba",
        "Mamba2": "retrograd.compat.layers.mamba2",
        "MambaLMHeadModel": "retrograd.compat.layers.model",
    },
)


@functools.wraps(selective_scan_interface.mamba_inner_fn)
def mamba_inner_fn(*args: Any, **kwargs: Any) -> Tensor | None:
    """`ops.selective_scan_interface.mamba_inner_fn` for transformers: None if the keyword `dt_rms_weight` is set.

    transformers' FalconMamba normalises the step sizes before their projection, as it was trained; mamba_ssm's fused
    function normalises them after it, which is another model. transformers takes None to mean that there is no fused
    function: it then uses causal_conv1d_fn and selective_scan_fn, and computes the same in training as in evaluation.
    """
    if kwargs.get("dt_rms_weight") is not None:
        return None
    return selective_scan_interface.mamba_inner_fn(*args, **kwargs)
