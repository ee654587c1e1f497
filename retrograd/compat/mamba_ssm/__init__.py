"""Stands in for the package mamba_ssm: Mamba-1's functions and the RMS norms."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from .ops import selective_scan_interface
from .ops.selective_scan_interface import selective_scan_fn

# The last release that had Mamba-1 alone, so that nobody expects Mamba-2's functions; the signatures are 2.3.2's.
__version__ = "1.2.2"

__all__ = ["mamba_inner_fn", "selective_scan_fn"]


@functools.wraps(selective_scan_interface.mamba_inner_fn)
def mamba_inner_fn(*args: Any, **kwargs: Any) -> Tensor | None:
    """What transformers calls: `ops.selective_scan_interface.mamba_inner_fn`, but None for a `dt_rms_weight` by name.

    transformers' FalconMamba normalises the step sizes before their projection, as it was trained; mamba_ssm's fused
    function does so after it and computes another model. None is transformers' word for "there is no fused function":
    it then goes by causal_conv1d_fn and selective_scan_fn, and computes in training what it does in evaluation.
    """
    if kwargs.get("dt_rms_weight") is not None:
        return None
    return selective_scan_interface.mamba_inner_fn(*args, **kwargs)
