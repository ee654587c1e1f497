"""The runs of equal ids in the rows of a batch, listed for the kernels of attention, which take them as sequences.

Steps are flat: p = row T + step. `runs` is int32: runs[0] is the number of runs, n; runs[1 + i] where run i begins;
runs[1 + n] the number of steps. A run of a negative id, whose steps are of no sequence, has -1 - p in place of p.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous

from ..device import unsigned
from .pairs import owner_of
from .tuples import Sequence, Work

COUNTS = tl.constexpr(1024)  # of blocks, added at once


@triton.jit
def begins(ids, p, T, total):
    """The ids at steps p, and whether runs begin there; `total` steps in all."""
    step = p % T
    at = ids.pointer + (p // T).to(tl.int64) * ids.batch + step.to(tl.int64) * ids.step
    own = tl.load(at, mask=p < total, other=0)
    before = tl.load(at - ids.step, mask=(p < total) & (step > 0), other=0)
    return own, (p < total) & ((step == 0) | (own != before))


@triton.jit(do_not_specialize=["T", "total"])
def count_runs(ids, counts_ptr, T, total, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """How many runs begin in each block of steps."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _own, first = begins(ids, p, T, total)
    tl.store(counts_ptr + tl.program_id(0), tl.sum(first.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["T", "total"])
def list_runs(ids, counts_ptr, runs_ptr, T, total, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """`runs`, from the counts of `count_runs`."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    block = tl.program_id(0)
    before = 0
    for start in range(0, block, COUNTS):
        other = start + tl.arange(0, COUNTS)
        before += tl.sum(tl.load(counts_ptr + other, mask=other < block, other=0), axis=0)
    p = block * BLOCK + tl.arange(0, BLOCK)
    own, first = begins(ids, p, T, total)
    flags = first.to(tl.int32)
    number = before + tl.cumsum(flags, axis=0) - 1
    tl.store(runs_ptr + 1 + number, tl.where(own < 0, -1 - p, p), mask=first)
    if block == tl.num_programs(0) - 1:
        count = before + tl.sum(flags, axis=0)
        tl.store(runs_ptr, count)
        tl.store(runs_ptr + 1 + count, total)


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
