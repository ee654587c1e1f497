"""The tiles of runs of equal ids, which the kernels take as sequences; `runs` lists the runs."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import forget

from ..device import unsigned
from .pairs import owner_of
from .tuples import Sequence, Work


@triton.jit
def own_tiles(runs_ptr, heads, BLOCK: tl.constexpr):
    """Of a program: its head; its first tile; the number of tiles of all runs; the distance between its tiles.

    The number of tiles is known on the device only. A head has the programs that runs of a tile on average need.
    """
    count = tl.load(runs_ptr)
    tiles = tl.load(runs_ptr + 1 + count) // BLOCK + count
    programs = tl.num_programs(0) // heads
    return tl.program_id(0) // programs, tl.program_id(0) % programs, tiles, programs


@triton.jit
def run_of(runs_ptr, tile, T, BLOCK: tl.constexpr):
    """Of a tile: its row; its run; the run's first step in the row; the number of the run's steps, and of those that
    they may see, which is 0 in a run of a negative id; the tile's first step in the run.
    """
    number = owner_of(runs_ptr + 1, tile, tl.load(runs_ptr), BLOCK, True)
    own = tl.load(runs_ptr + 1 + number)
    start, end = unsigned(own), unsigned(tl.load(runs_ptr + 2 + number))
    row = start // T
    at = (tile - start // BLOCK - number) * BLOCK
    return row, number, start - row * T, end - start, tl.where(own < 0, 0, end - start), at


@triton.jit
def run_of_queries(runs_ptr, tile, head, sizes, BLOCK: tl.constexpr):
    """What `tile_of_queries` returns, of a run."""
    row, number, first, own, others, at = run_of(runs_ptr, tile, sizes.queries, BLOCK)
    return Work(Sequence(row, number, first, own, first, others, row * sizes.queries), head, tile, at)


@triton.jit
def run_of_keys(runs_ptr, tile, group, sizes, BLOCK: tl.constexpr, IN_PTX: tl.constexpr):
    """What `tile_of_keys` returns, of a run."""
    if IN_PTX:
        group = forget(group)  # lest what follows from it stays in registers from tile to tile
    row, number, first, own, others, at = run_of(runs_ptr, tile, sizes.keys, BLOCK)
    return Work(Sequence(row, number, first, others, first, own, row * sizes.queries), group, tile, at)
