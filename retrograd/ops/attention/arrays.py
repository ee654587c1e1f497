"""Arrays with their strides, as the kernels of attention take them, and how many columns a tile of them has."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton import next_power_of_2

STEPS_OF_PACKED = 2**28  # the limit of a packed sequence's length


class Heads(NamedTuple):
    """An array (batch, steps, heads, columns), or one with fewer of these axes, whose strides are then 0."""

    pointer: Any
    batch: Any
    step: Any
    head: Any
    column: Any


class Pairs(NamedTuple):
    """A bias, (batch, heads, queries, keys); the strides of axes of size 1 are 0."""

    pointer: Any
    batch: Any
    head: Any
    query: Any
    key: Any


def columns(size: int) -> int:
    """Columns of a tile that holds a head."""
    return max(16, next_power_of_2(size))
