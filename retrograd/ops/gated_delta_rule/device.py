"""Log decays of a block of C steps, and rows of dense arrays. Symbols: README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, LOG2E_REST

# 2 to this power is 0: a log decay below it loses nothing by being it, and the sums that it is in keep their digits.
FLOOR = tl.constexpr(-150.0)
# A log decay plus this number is rounded to a multiple of 2^-9: a block's sums of such numbers have no error.
ROUNDS = tl.constexpr(1.5 * 2**14)


@triton.jit
def offsets_of(t, head, heads, columns, COUNT: tl.constexpr):
    """(steps, columns) of a head in a dense array (steps of all rows, heads, COUNT)."""
    return ((t.to(tl.int64) * heads + head) * COUNT)[:, None] + columns[None, :]


@triton.jit
def sums_of(log, count):
    """Sums of log decays (steps,) from a block's start; after `count` steps the last of theirs, to the bit.

    A parallel sum adds in another order there and rounds otherwise, which would be a decay where there is none.
    """
    return settled(tl.cumsum(log, axis=0), count)


@triton.jit
def fine_sums_of(g, count):
    """The same in base 2 from log decays in base e, rounded once: errors of a sum are relative errors of its decay."""
    g = g.to(tl.float32)
    log = tl.where(g < FLOOR / LOG2E, FLOOR / LOG2E, g)
    coarse = (log + ROUNDS) - ROUNDS
    whole, rest = tl.cumsum(coarse, axis=0), tl.cumsum(log - coarse, axis=0)
    high = whole * LOG2E
    return settled(high + (tl.fma(whole, LOG2E, -high) + (whole * LOG2E_REST + rest * LOG2E)), count)


@triton.jit
def settled(sums, count):
    """Sums (steps,) or (steps, channels); after `count` steps the last of theirs."""
    j = tl.arange(0, sums.shape[0])
    if len(sums.shape) == 2:
        j = j[:, None]
    last = tl.sum(tl.where(j == count - 1, sums, 0.0), axis=0, keep_dims=len(sums.shape) == 2)
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
