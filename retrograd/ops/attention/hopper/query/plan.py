"""Which kernels attend to one query of each sequence, and their tiles: they decide the time, never the bits."""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ...arrays import columns
from ...step import Query
from ..plan import MULTIPROCESSORS, forward_tiles
from .place import ROWS

SHARED = 226 * 1024  # bytes of a multiprocessor's shared memory for blocks
NARROW = 64  # columns of values of a program of `walk`, where there are few programs
HALF = 128  # registers of a thread where two programs share a multiprocessor
LONG = 2**11  # keys that a query sees
FEW = 22  # walks, which take so few multiprocessors that memory waits for them


@dataclass(frozen=True)
class WalkTiles:
    """The tiles of `walk`.

    Attributes:
        columns: of values, of a program.
        stages: blocks of k, and of v, in shared memory.
        registers: of a thread when a program begins; None is as many as one program on a multiprocessor may have.
    """

    columns: int
    stages: int
    registers: int | None = None


@dataclass(frozen=True)
class BlockTiles:
    """The tiles of the kernels for long caches.

    Attributes:
        span: blocks of a program of `exponentials`.
        columns: of values, of a program of `sum_values`.
        stages: blocks of its arrays in shared memory.
    """

    span: int = 2
    columns: int = 32
    stages: int = 8


@dataclass(frozen=True)
class QueryPlan:
    """The kernels of a call.

    Attributes:
        structure: "walk", a walk over all blocks, or "blocks", programs for each block before a walk with little to do.
        keys: of a block, those of `forward`: they are a part of the order of sums.
        walk: the tiles of `walk`.
        blocks: those of the others.
    """

    structure: str
    keys: int
    walk: WalkTiles
    blocks: BlockTiles = BlockTiles()


def planned(spec: Query, arch: Arch, which: Pass) -> QueryPlan:
    """The kernels of a call, and their tiles. How many slots are used is known on the device only."""
    keys = forward_tiles(spec.head_size, spec.value_size).keys
    before, _after = spec.attention.sides
    seen = spec.capacity if before is None else min(spec.capacity, before + 1)
    long = seen >= LONG and spec.batch * spec.groups <= FEW
    return QueryPlan("blocks" if long else "walk", keys, walk_tiles(spec, keys))


def walk_tiles(spec: Query, keys: int) -> WalkTiles:
    """The tiles of `walk`: as much in flight as there is room for; in two programs where two have room for it."""
    heads, size = spec.batch * spec.groups, columns(spec.head_size)
    few = heads * -(-spec.value_size // NARROW) <= MULTIPROCESSORS
    own = columns(spec.value_size)
    own = min(own, NARROW) if few else own
    q, block = 2 * ROWS.value * size, 2 * keys * (size + own)
    in_half = (SHARED // 2 - q) // block
    if heads > MULTIPROCESSORS and in_half > 1:
        return WalkTiles(own, in_half, HALF)
    return WalkTiles(own, (SHARED - q) // block)
