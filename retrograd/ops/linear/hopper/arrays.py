"""What only the Hopper kernels of linear take. Symbols: ../README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Of a product: rows and columns of the result, terms of a sum, and steps of a part of the sums."""

    rows: Any
    columns: Any
    terms: Any
    part_steps: Any


class Operands(NamedTuple):
    """The operands of a product as they lie in memory, and the stages of the ring that holds their tiles.

    A: whether the rows of a are columns in memory, so that its terms are rows. B: the same of b.
    """

    A: bool
    B: bool
    STAGES: int


class Ends(NamedTuple):
    """What a product adds and writes: a bias or none; the result, or parts of it in float32."""

    bias: Any
    out: Any
    partial: Any
