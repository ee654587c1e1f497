"""Checks that the stand-ins share; they speak of the packages' own layouts and names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from retrograd.core.errors import bad_dtype, bad_shape, bad_type

Kind = Literal["real", "real or complex", "int32 or int64"]


def expect(function: str, name: str, tensor: Any, shape: Sequence[int], dims: str, kind: Kind = "real") -> None:
    """Raise unless it is a tensor of this shape and kind; `dims` names its dimensions."""
    if not isinstance(tensor, Tensor):
        raise bad_type(function, name, tensor, "a torch.Tensor")
    if tuple(tensor.shape) != tuple(shape):
        raise bad_shape(function, name, tensor.shape, f"{dims} = {tuple(shape)}")
    integer = kind == "int32 or int64" and tensor.dtype in (torch.int32, torch.int64)
    real = kind.startswith("real") and tensor.is_floating_point()
    if not (integer or real or (kind == "real or complex" and tensor.is_complex())):
        raise bad_dtype(function, name, str(tensor.dtype), [kind])


def expect_if_given(
    function: str, name: str, tensor: Any, shape: Sequence[int], dims: str, kind: Kind = "real"
) -> None:
    """The same for an argument that may be None."""
    if tensor is not None:
        expect(function, name, tensor, shape, dims, kind)


def expect_dims(function: str, name: str, tensor: Any, *dims: str) -> None:
    """Raise unless it is a tensor with as many dimensions as one of the layouts."""
    if not isinstance(tensor, Tensor):
        raise bad_type(function, name, tensor, "a torch.Tensor")
    if tensor.ndim not in [layout.count(",") + 1 for layout in dims]:
        raise bad_shape(function, name, tensor.shape, " or ".join(dims))


def expect_norm(function: str, x: Any, weight: Any, bias: Any) -> None:
    """Raise unless x has rows, and weight and the bias that may be given are a row long."""
    if not isinstance(x, Tensor):
        raise bad_type(function, "x", x, "a torch.Tensor")
    if x.ndim == 0:
        raise bad_shape(function, "x", x.shape, "(..., dim)")
    expect(function, "weight", weight, x.shape[-1:], "(dim,)")
    expect_if_given(function, "bias", bias, x.shape[-1:], "(dim,)")


def refuse(function: str, why: str, **arguments: Any) -> None:
    """Raise for the first of these arguments that is given, and is not False."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{function}: {name} is not supported{why}")


def activation_of(function: str, activation: Any) -> Literal["silu"] | None:
    """The packages' activation as retrograd's: silu has a second name there."""
    if activation is None:
        return None
    if activation in ("silu", "swish"):
        return "silu"
    raise NotImplementedError(f"{function}: activation is {activation!r}, expected None, 'silu' or 'swish'")
