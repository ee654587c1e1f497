"""Tile sizes: a pure function of the spec and the architecture.

The tile of a product of rows follows the number of rows, because all tiles give the same bits: an element's sum runs
along its terms in order, whatever the tile. In float32 the terms of a step are added by themselves first: there all
tiles have as many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrograd.core.arch import Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.spec import Pass
from retrograd.core.tiles import warps_of

from ..op import Spec

FEW_ROWS = 16  # up to which the tile is as low as the tensor cores allow
PROGRAMS = 128  # about as many compute the gradient of a weight, if need be in parts of its sums
MOST_PARTS = 16
GROUP = 8


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a program: rows and columns of a result, terms of a step, warps, stages of the pipeline."""

    rows: int
    columns: int
    terms: int
    num_warps: int
    stages: int


# By bytes of an element.
LOW = {2: Tile(16, 32, 128, 4, 4), 4: Tile(16, 32, 32, 4, 2)}
HIGH = {2: Tile(128, 128, 64, 8, 3), 4: Tile(64, 64, 32, 4, 2)}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass.

    Attributes:
        rows: the tile of y, or of dx.
        weight: that of the gradient of the weight.
        parts: parts of the sums of that gradient.
    """

    rows: Tile
    weight: Tile
    parts: int

    def for_rows(self, rows: int) -> Plan:
        """The plan with the tile of y or dx for another number of rows."""
        size = next(size for size, tile in HIGH.items() if tile == self.weight)
        return replace(self, rows=(LOW if rows <= FEW_ROWS else HIGH)[size])


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    size = BYTES[spec.x.dtype]
    high = HIGH[size]
    programs = -(-spec.N // high.rows) * -(-spec.K // high.columns)
    return Plan(high, high, max(1, min(MOST_PARTS, PROGRAMS // programs))).for_rows(spec.rows)


def warps(tile: Tile, arch: Arch) -> int:
    """Warps of a program."""
    return warps_of(tile.num_warps, arch)
