"""The tiles of the kernels of attention."""

from __future__ import annotations

from dataclasses import dataclass

from triton import next_power_of_2

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass
from retrograd.core.tiles import warps_of

from ..op import Spec


@dataclass(frozen=True)
class Tile:
    """A tile of queries and a tile of keys.

    Attributes:
        queries: queries of a tile.
        keys: keys of a tile, a multiple of 32.
        num_warps: warps of a program.
        num_stages: tiles that are loaded ahead, and the one that is used.
    """

    queries: int
    keys: int
    num_warps: int
    num_stages: int = 2


def columns(size: int) -> int:
    """Columns of a tile that holds a head."""
    return max(16, next_power_of_2(size))


def planned(spec: Spec, arch: Arch, which: Pass) -> Tile:
    """The tile of a pass: a function of the sizes of a head and the dtype."""
    widest = max(columns(spec.head_size), columns(spec.value_size)) * (2 if spec.q.dtype == "float32" else 1)
    queries, keys, warps = (128, 64, 8) if widest <= 128 else (64, 32, 8) if widest <= 256 else (32, 32, 8)
    return Tile(queries, keys, warps_of(warps, arch))
