"""Log decays of a block of C steps, and rows of dense arrays. Symbols: README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E

# 2 to this power is 0: a log decay below it loses nothing by being it, and the sums that it is in keep their digits.
FLOOR = tl.constexpr(-150.0)


@triton.jit
def offsets_of(t, head, heads, columns, COUNT: tl.constexpr):
    """(steps, columns) of a head in a dense array (steps of all rows, heads, COUNT)."""
    return ((t.to(tl.int64) * heads + head) * COUNT)[:, None] + columns[None, :]


@triton.jit
def sums_of(log, count):
    """Sums of log decays (steps,) from a block's start; after `count` steps the last of theirs, to the bit.

    A parallel sum adds in another order there and rounds otherwise, which would be a decay where there is none.
    """
    j = tl.arange(0, log.shape[0])
    sums = tl.cumsum(log, axis=0)
    last = tl.sum(tl.where(j == count - 1, sums, 0.0), axis=0)
    return tl.where(j < count, sums, last)


@triton.jit
def log_decays(g):
    """Log decays in base 2."""
    log = g.to(tl.float32) * LOG2E
    return tl.where(log < FLOOR, FLOOR, log)


@triton.jit
def decays_between(sums):
    """(target, source): the decay from a source to the same or a later step, from `sums_of`; 0 to earlier ones."""
    j = tl.arange(0, sums.shape[0])
    between = tl.where(j[:, None] >= j[None, :], sums[:, None] - sums[None, :], float("-inf"))
    return tl.exp2(between)
