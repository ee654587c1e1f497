"""Arrays with their strides, and numbers that belong together, as the kernels take them. Symbols: README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Heads(NamedTuple):
    """An array (batch, steps, heads or key heads, columns) of dense columns, or one without columns.

    Where it has columns, strides are counted in a number of elements that divides them all.
    """

    pointer: Any
    batch: Any
    step: Any
    head: Any


class Call(NamedTuple):
    """Steps of a row, sequences, heads, key heads, and the scale of the results: on these no binary depends."""

    T: Any
    sequences: Any
    H: Any
    G: Any
    scale: Any


class Sequences(NamedTuple):
    """Where sequences begin and end: `cu_seqlens` of a packed row, or None where each row is a sequence of T steps."""

    cu_seqlens: Any
    T: Any
    sequences: Any
