"""The runs of equal ids in the rows of a batch, listed for the kernels of attention, which take them as sequences.

Steps are flat: p = row T + step. `runs` is int32: runs[0] is the number of runs, n; runs[1 + i] where run i begins;
runs[1 + n] the number of steps. A run of a negative id, whose steps are of no sequence, has -1 - p in place of p.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

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
