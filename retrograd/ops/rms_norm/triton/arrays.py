"""Arrays with their strides, and compile-time values, as the kernels of rms_norm take them."""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple


@cache
def rows_type(dims: int) -> Any:
    """The named tuple of an array with rows: its pointer, the strides of rows and that of heads.

    Rows have `dims` inner dimensions, whose strides come first, from the innermost on, then that of the outermost.
    """
    make: Any = namedtuple  # mypy would ask for literal names
    kind = make("Rows", ["pointer", *(f"inner_{i}" for i in range(dims)), "row", "head"])
    kind.__reduce__ = lambda rows: (_rows, tuple(rows))  # another process makes the type again
    return kind


def _rows(*fields: Any) -> Any:
    return rows_type(len(fields) - 3)(*fields)


class Parameter(NamedTuple):
    """A parameter (heads, columns), or (columns,)."""

    pointer: Any
    head: Any


class Gates(NamedTuple):
    """Whether a gate comes before the normalisation, or after it; whether its activation is sigmoid, not silu."""

    first: bool
    last: bool
    sigmoid: bool


class Sizes(NamedTuple):
    """Columns of a row, columns and rows of a tile, and stages of the loop over tiles."""

    columns: int
    block: int
    rows: int
    stages: int


class Loaded(NamedTuple):
    """The tiles that a backward kernel has loaded; None where there is no such array."""

    dy: Any
    dsum: Any
    s: Any
    gate: Any


class Gradients(NamedTuple):
    """Pointers to the gradients of arrays with rows."""

    dx: Any
    dresidual: Any
    dgate: Any
