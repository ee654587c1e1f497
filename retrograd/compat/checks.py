"""Checks that the stand-ins share; they speak of the packages' own layouts and names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from retrograd.core.errors import bad_shape, bad_type


def expect(function: str, name: str, tensor: Any, shape: Sequence[int], dims: str) -> None:
    """Raise unless it is a tensor of this shape; `dims` names its dimensions. None passes."""
    if tensor is None:
        return
    if not isinstance(tensor, Tensor):
        raise bad_type(function, name, tensor, "a torch.Tensor")
    if tuple(tensor.shape) != tuple(shape):
        raise bad_shape(function, name, tensor.shape, f"{dims} = {tuple(shape)}")


def expect_dims(function: str, name: str, tensor: Any, *dims: str) -> None:
    """Raise unless it is a tensor with as many dimensions as one of the layouts."""
    if not isinstance(tensor, Tensor):
        raise bad_type(function, name, tensor, "a torch.Tensor")
    if tensor.ndim not in [layout.count(",") + 1 for layout in dims]:
        raise bad_shape(function, name, tensor.shape, " or ".join(dims))


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
