"""The few array functions that portable paths use, for both PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Namespace:
    """Array functions of one framework. Reductions are over the last axis and keep it, unless stated otherwise."""

    astype: Callable[[Any, str], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    dense: Callable[[Any], Any]  # row-major contiguous, as kernels write it and as shape inference promises
    mean: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    silu: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    sum_to: Callable[[Any, tuple[int, ...]], Any]  # sums over leading axes; the trailing shape remains
    sum: Callable[[Any, int | tuple[int, ...]], Any]  # over axes, which are removed
    arange: Callable[[Any, int], Any]  # 0 to size - 1, on the device of the first argument
    clip: Callable[[Any, int, int], Any]
    cumsum: Callable[[Any, int, bool], Any]  # over an axis; from its end if the last argument is True
    matmul: Callable[[Any, Any], Any]  # of matrices in the last two axes; other axes broadcast
    # a b^T of two matrices; in PyTorch an element's bits depend on its row of a and its row of b alone.
    row_products: Callable[[Any, Any], Any]
    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    abs: Callable[[Any], Any]
    max: Callable[[Any], Any]
    maximum: Callable[[Any, Any], Any]
    # word(x): integers as words of 32 bits, for `^`, `&`, `>>` by fewer than 32 bits, and `mul_wide`.
    # mul_wide(word, n): the high and the low word of its product with an int of 32 bits.
    # add_word(word, n): the sum, without what exceeds 32 bits.
    word: Callable[[Any], Any]
    mul_wide: Callable[[Any, int], tuple[Any, Any]]
    add_word: Callable[[Any, int], Any]
    softplus: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]
    multiply: Callable[[Any, Any], Any]  # where a factor may be complex; for products of real numbers use `*`
    conj: Callable[[Any], Any]
    complex: Callable[[Any, Any], Any]  # from real and imaginary part; `.real` and `.imag` return them
    # wide(x): real x in a form for which `*`, `+` and `-` keep at least 10 more bits; float64 is unchanged.
    # narrow(wide, dtype): the rounded value, and the rounding error, or 0 where the rounded value is not finite.
    wide: Callable[[Any], Any]
    narrow: Callable[[Any, str], tuple[Any, Any]]
    moveaxis: Callable[[Any, int, int], Any]
    broadcast_to: Callable[[Any, tuple[int, ...]], Any]
    concat: Callable[[Sequence[Any], int], Any]
    stack: Callable[[Sequence[Any], int], Any]
    zeros: Callable[[Any, tuple[int, ...], str], Any]  # on the device of the first argument
    # scan(step, carry, xs, reverse): carry, y = step(carry, x) over the leading axis of every array in the tuple xs.
    # Returns the last carry, and the y stacked, each at the index of its x. Carries and y are tuples.
    scan: Callable[[Callable[[Any, Any], Any], Any, Any, bool], Any]
    # recurrence(decay, added, h, reverse): h = decay[t] * h + added[t] along the leading axis. Returns every h,
    # including the initial one, which comes first, or last if reverse.
    recurrence: Callable[[Any, Any, Any, bool], Any]


def aligned(x: Any, like: Any) -> Any:
    """x with as many axes as `like`, those before its own of size 1: JAX can be told to refuse to add them itself."""
    return x[(None,) * (len(like.shape) - len(x.shape))]


def sigmoid_grad(xp: Namespace, z: Any) -> Any:
    """The derivative of sigmoid."""
    sigmoid = xp.sigmoid(z)
    return sigmoid * (1 - sigmoid)


def silu_grad(xp: Namespace, z: Any) -> Any:
    """The derivative of silu."""
    sigmoid = xp.sigmoid(z)
    return sigmoid * (1 + z * (1 - sigmoid))


def rows_of(shape: tuple[int, ...], trailing: tuple[int, ...]) -> int:
    """The number of rows of a shape that ends in the axes `trailing`."""
    return prod(shape[: len(shape) - len(trailing)])
