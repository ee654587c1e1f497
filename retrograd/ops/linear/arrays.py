"""What kernels of both implementations take. Symbols: README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tiles(NamedTuple):
    """Of a program: rows and columns of its part of the result, and terms of a step.

    GROUP: rows of tiles that are walked column by column.
    """

    ROWS: int
    COLUMNS: int
    TERMS: int
    GROUP: int


class Matrix(NamedTuple):
    """A matrix with its strides, in elements."""

    pointer: Any
    row: Any
    column: Any
