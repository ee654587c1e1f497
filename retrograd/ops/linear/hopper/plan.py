"""Tile sizes and the choice of a kernel by the number of rows: all of them give the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ..op import Spec

MULTIPROCESSORS = 132  # of an H200; each runs one program of `product` at a time
HALF = 64  # about half of them
FEW_COLUMNS = 64  # of a program of `few_rows`, its outputs: rows of the left operand of a product of a warpgroup
FEW_REGISTERS = 128  # of a thread of `few_rows`, so that the next kernel's programs can start beside it
GROUP = 8
MOST_PARTS = 16
PART = 1024  # rows of a part of the sums of a weight's gradient, so that what is written is little beside them


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
# The time of a tile, in halves of that of LARGE: smaller ones fetch more for a product.
TIMES = {LARGE: 2.0, TALL: 2.0, SQUARE: 1.04, NARROW: 0.75}


@dataclass(frozen=True, slots=True)
class Few:
    """What a program of `few_rows` has: rows, terms of a step, stages of the ring."""

    rows: int
    terms: int
    stages: int


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
        return replace(self, few=_few(rows, self.columns), rows=_tile(rows, self.columns))


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    columns = spec.N if which == "fwd" else spec.K
    weight = LARGE
    parts = min(MOST_PARTS, MULTIPROCESSORS // _tiles(weight, spec.N, spec.K), -(-spec.rows // PART))
    return Plan(None, NARROW, weight, max(1, parts), columns).for_rows(spec.rows)


def _tiles(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def _few(rows: int, columns: int) -> Few | None:
    """The tile of `few_rows`, while its programs all run at once; more of them fetch the same rows and weights."""
    across = -(-columns // FEW_COLUMNS)
    if rows <= 32:
        return Few(8 if rows <= 8 else 16 if rows <= 16 else 32, 128, 8 if across <= MULTIPROCESSORS else 4)
    if across * -(-rows // 32) <= HALF:
        return Few(32, 128, 8)
    programs = across * -(-rows // 64)
    if rows <= 64 or programs <= MULTIPROCESSORS:
        return Few(64, 64, 8 if programs <= MULTIPROCESSORS else 4)
    return None


def _tile(rows: int, columns: int) -> Tile:
    """The tile of `product` that takes least time: each multiprocessor computes one after another."""

    def time(tile: Tile) -> float:
        return -(-_tiles(tile, rows, columns) // MULTIPROCESSORS) * TIMES[tile]

    return min((TALL, LARGE, SQUARE, NARROW), key=time)
