"""Where a model is exact by default: where that costs little."""

from __future__ import annotations

import torch
from torch import Tensor

from retrograd.core.torch.launch import arch_of

FREE = (torch.bfloat16, torch.float16)


def is_exact(chosen: bool | None, x: Tensor) -> bool:
    """Whether a layer computes x exactly: as chosen, by default where it takes no longer than PyTorch's products."""
    return is_free(x) if chosen is None else chosen


def is_free(x: Tensor) -> bool:
    """Whether x is in 16 bits, by autocast if not by itself, on a GPU with kernels as fast as PyTorch's products.

    Not in a subclass of Tensor: a DTensor's products are PyTorch's, which knows how to divide them.
    """
    if x.device.type != "cuda" or type(x) is not Tensor:
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return dtype in FREE and _is_hopper(x.device)


@torch.compiler.assume_constant_result
def _is_hopper(device: torch.device) -> bool:
    arch = arch_of(device)
    return arch is not None and arch.name == "sm_90"
