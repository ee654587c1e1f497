"""Checks shared by the stand-ins, of arguments known to be tensors, with the packages' layouts and names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor

from retrograd.core.dtypes import FLOATS
from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value, renamed
from retrograd.core.torch.launch import dtype_name

Kind = Literal["real", "real or complex", "int32 or int64"]
DTYPES: dict[Kind, tuple[str, ...]] = {
    "real": FLOATS,
    "real or complex": (*FLOATS, "complex64", "complex128"),
    "int32 or int64": ("int32", "int64"),
}


def expect(function: str, name: str, tensor: Tensor, shape: Sequence[int], dims: str, kind: Kind = "real") -> None:
    """Raise unless a tensor has this shape and kind; `dims` names its dimensions."""
    if tuple(tensor.shape) != tuple(shape):
        raise bad_shape(function, name, tensor.shape, f"{dims} = {tuple(shape)}")
    if (dtype := dtype_name(tensor.dtype)) not in DTYPES[kind]:
        raise bad_dtype(function, name, dtype, DTYPES[kind])


def expect_if_given(
    function: str, name: str, tensor: Tensor | None, shape: Sequence[int], dims: str, kind: Kind = "real"
) -> None:
    """`expect`, for an argument that may be None."""
    if tensor is not None:
        expect(function, name, tensor, shape, dims, kind)


def expect_dims(function: str, name: str, tensor: Tensor, *dims: str) -> None:
    """Raise unless a tensor has as many dimensions as one of the layouts."""
    if tensor.ndim not in [layout.rstrip(",)").count(",") + 1 for layout in dims]:
        raise bad_shape(function, name, tensor.shape, " or ".join(dims))


def expect_norm(function: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless x has rows, and weight and an optional bias have the length of a row."""
    if x.ndim == 0:
        raise bad_shape(function, "x", x.shape, "(..., dim)")
    expect(function, "x", x, x.shape, "(..., dim)")
    expect(function, "weight", weight, x.shape[-1:], "(dim,)")
    expect_if_given(function, "bias", bias, x.shape[-1:], "(dim,)")


def expect_integer(function: str, name: str, value: Any, least: int = 1) -> None:
    """Raise unless a value is an int, no bool, of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_type(function, name, value, "an int")
    if value < least:
        raise bad_value(function, name, value, f"at least {least}")


def flag(function: str, name: str, value: Any) -> bool:
    """A boolean option; like the packages, it accepts 0 and 1."""
    if not isinstance(value, int):
        raise bad_type(function, name, value, "a bool")
    if value not in (0, 1):
        raise bad_value(function, name, value, "a bool")
    return bool(value)


def refuse(function: str, why: str, **arguments: Any) -> None:
    """Raise for the first of these arguments that is neither None nor False."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{function}: {name} is not supported{why}")


@contextmanager
def errors_of(op: str, function: str, **names: str) -> Iterator[None]:
    """Let errors of an op speak of a function that calls it, and of this function's arguments."""
    try:
        yield
    except (ValueError, TypeError) as error:
        renamed(error, {op: function, **names})
        raise


def activation_of(function: str, activation: Any) -> Literal["silu"] | None:
    """The packages' activation in retrograd's terms; they have a second name for silu."""
    if activation is None:
        return None
    if isinstance(activation, str) and activation in ("silu", "swish"):
        return "silu"
    raise NotImplementedError(f"{function}: activation is {activation!r}, expected None, 'silu' or 'swish'")
