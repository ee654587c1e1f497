"""Tile sizes and the choice of a kernel by the number of rows: all of them give the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ..op import Spec

MULTIPROCESSORS = 132  # of an H200; each runs one program of `product` at a time
FEW_COLUMNS = 64  # its outputs: rows of the left operand of a product of a warpgroup
FEW_REGISTERS = 128  # of a thread of `few_rows`, so that the next kernel's programs can start beside it
GROUP = 8
MOST_PARTS = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a program: rows and columns of a result, terms of a step, stages of the ring."""

    rows: int
    columns: int
    terms: int
    stages: int


LARGE, TALL, SQUARE, NARROW = (
    Tile(128, 256, 64, 4),
    Tile(256, 128, 64, 4),
    Tile(128, 128, 64, 6),
    Tile(128, 64, 64, 8),
)


@dataclass(frozen=True, slots=True)
class Few:
    """What a program of `few_rows` has: rows, terms of a step, stages of the ring."""

    rows: int
    terms: int
    stages: int


FEW = (Few(8, 128, 8), Few(16, 128, 8), Few(32, 128, 6), Few(64, 128, 4))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass.

    Attributes:
        few: of `few_rows`, where it computes y or dx; None where `product` does.
        rows: the tile of y or dx.
        weight: the tile of the gradient of the weight.
        parts: parts in which the sums of that gradient are computed.
        columns: columns of y or dx.
    """

    few: Few | None
    rows: Tile
    weight: Tile
    parts: int
    columns: int

    def for_rows(self, rows: int) -> Plan:
        """The plan with what computes y or dx for another number of rows."""
        few = next((few for few in FEW if rows <= few.rows), None)
        return replace(self, few=few, rows=_filling(rows, self.columns))


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    columns = spec.N if which == "fwd" else spec.K
    weight = LARGE
    parts = max(1, min(MOST_PARTS, MULTIPROCESSORS // _tiles(weight, spec.N, spec.K)))
    return Plan(None, NARROW, weight, parts, columns).for_rows(spec.rows)


def _tiles(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def _filling(rows: int, columns: int) -> Tile:
    """The largest tile of which there are enough for all multiprocessors."""
    for tile in (TALL, LARGE, SQUARE, NARROW):
        if _tiles(tile, rows, columns) >= MULTIPROCESSORS:
            return tile
    return NARROW
