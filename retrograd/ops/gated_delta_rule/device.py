"""Where a block of steps lies, and how its rows are read. Symbols: README.md.

A block is C steps of a sequence, counted from the sequence's start. Scratch arrays have a slot for every block; a
sequence of a packed row has slots from start // C + its number on (`core.chunks.slots` says why that is enough).
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E

from .arrays import Heads

# 2 to this power is 0: a log decay below it loses nothing by being it, and the sums that it is in keep their digits.
FLOOR = tl.constexpr(-150.0)


@triton.jit
def bounds_of(number, sequences):
    """A sequence's row, first step and length; of a packed one, clamped to steps that exist."""
    T = sequences.T
    if sequences.cu_seqlens is None:
        return tl.cast(number, tl.int64), 0, T
    else:
        start = tl.minimum(tl.maximum(tl.load(sequences.cu_seqlens + number), 0), T)
        stop = tl.minimum(tl.maximum(tl.load(sequences.cu_seqlens + number + 1), start), T)
        return tl.cast(number, tl.int64) * 0, start, stop - start


@triton.jit
def first_slot(number, start, sequences, STEPS: tl.constexpr):
    """A sequence's first slot in an array with one for every STEPS steps."""
    if sequences.cu_seqlens is None:
        return number * tl.cdiv(sequences.T, STEPS)
    else:
        return start // STEPS + number


@triton.jit
def owner_of(slot, sequences, STEPS: tl.constexpr):
    """The number of the sequence whose slot it may be, and the first step of the slot within the sequence.

    That step is negative, or past the end, where the slot belongs to none.
    """
    T = sequences.T
    if sequences.cu_seqlens is None:
        blocks = tl.cdiv(T, STEPS)
        return slot // blocks, slot % blocks * STEPS
    else:
        # First slots grow with the number: the last one that is not after this slot.
        low = 0
        high = sequences.sequences
        while low + 1 < high:
            middle = (low + high) // 2
            start = tl.minimum(tl.maximum(tl.load(sequences.cu_seqlens + middle), 0), T)
            before = start // STEPS + middle <= slot
            low = tl.where(before, middle, low)
            high = tl.where(before, high, middle)
        start = tl.minimum(tl.maximum(tl.load(sequences.cu_seqlens + low), 0), T)
        return low, (slot - start // STEPS - low) * STEPS


@triton.jit
def outside(slot, sequences, STEPS: tl.constexpr):
    """Steps of a packed row that a slot clears, and which of them are in no sequence.

    There are slots enough for all steps, so one more store a program fills what no sequence writes.
    """
    t = slot * STEPS + tl.arange(0, STEPS)
    start = tl.load(sequences.cu_seqlens)
    stop = tl.load(sequences.cu_seqlens + sequences.sequences)
    return t, (t < sequences.T) & ((t < start) | (t >= stop))


@triton.jit
def rows_at(array, row, step, head, UNIT: tl.constexpr):
    """`Heads` from a head's rows on, at a step of a row."""
    offset = row * array.batch + tl.cast(step, tl.int64) * array.step + tl.cast(head, tl.int64) * array.head
    return Heads(array.pointer + offset * UNIT, array.batch, array.step, array.head)


@triton.jit
def load_rows(rows, t, columns, live, COUNT: tl.constexpr, UNIT: tl.constexpr):
    """Rows (steps, columns) from `rows_at`; zeros in steps that do not live, and from column COUNT on."""
    offsets = (t.to(tl.int64) * rows.step)[:, None] * UNIT + columns[None, :]
    return tl.load(rows.pointer + offsets, mask=live[:, None] & (columns < COUNT)[None, :], other=0.0)


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
