"""`torch.autocast`: a call's activations in its dtype, as their declaration says (`spec.autocast_ranks`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..dtypes import KERNEL_FLOATS
from .launch import DTYPES

CAST = frozenset(DTYPES[name] for name in KERNEL_FLOATS)
# For any type of device: asking for one of them takes longer, in a call that most often is outside of autocast.
autocasts_anywhere = torch._C._is_any_autocast_enabled
# Types that autocast does not know. torch 2.11 cannot compile the function that says so, is_autocast_available.
NEVER_CASTING = ("meta", "lazy", "vulkan")


def autocasts(device: str) -> bool:
    """Whether calls on a type of device are under autocast."""
    return device not in NEVER_CASTING and torch.is_autocast_enabled(device)


def no_autocast(device: str) -> AbstractContextManager[Any]:
    """A context without autocast."""
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


def cast(arrays: dict[str, Any], ranks: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """A call's arrays by name, in autocast's dtype where it is on for their device, by differentiable casts.

    Values that are no tensors are returned unchanged, for a later check to report.
    """
    device = next((array.device.type for array in arrays.values() if isinstance(array, Tensor)), None)
    if device is None or not autocasts(device):
        return arrays
    dtype = torch.get_autocast_dtype(device)

    def one(name: str, array: Any) -> Any:
        if not isinstance(array, Tensor) or array.layout is not torch.strided or array.dtype not in CAST:
            return array
        stays = array.dtype == torch.float32 and array.ndim not in ranks[name]
        return array if stays else array.to(dtype)

    return {name: one(name, array) if name in ranks else array for name, array in arrays.items()}
