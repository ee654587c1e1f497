"""Casts of the packages' arguments to the dtypes that retrograd's ops take."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from retrograd.core.dtypes import FLOATS
from retrograd.core.torch.launch import DTYPES

REAL = frozenset(DTYPES[name] for name in FLOATS)  # what the ops take


def arithmetic(x: Tensor) -> torch.dtype:
    """The dtype that an op computes in for this input."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@overload
def beside(x: Tensor, tensor: Tensor) -> Tensor: ...
@overload
def beside(x: Tensor, tensor: None) -> None: ...
@overload
def beside(x: Tensor, tensor: Tensor | None) -> Tensor | None: ...
def beside(x: Tensor, tensor: Tensor | None) -> Tensor | None:
    """An activation, or a norm's or filter's parameter: unchanged in the dtype of x, else in that of the arithmetic."""
    return tensor if tensor is None or tensor.dtype == x.dtype else tensor.to(arithmetic(x))


@overload
def full(x: Tensor, tensor: Tensor) -> Tensor: ...
@overload
def full(x: Tensor, tensor: None) -> None: ...
@overload
def full(x: Tensor, tensor: Tensor | None) -> Tensor | None: ...
def full(x: Tensor, tensor: Tensor | None) -> Tensor | None:
    """A parameter of the scan, in the arithmetic's dtype; complex stays complex."""
    if tensor is None:
        return None
    dtype = arithmetic(x)
    return tensor.to(dtype.to_complex() if tensor.is_complex() else dtype)


def widened(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A parameter as `rms_norm` takes it: one of 16 bits is cast exactly if activations have another dtype."""
    if parameter is None or parameter.dtype == dtype or parameter.dtype not in (torch.bfloat16, torch.float16):
        return parameter
    return parameter.to(torch.promote_types(dtype, torch.float32))
