"""Where a block of steps of a sequence lies, and how its rows are read.

A block is STEPS steps, counted from the sequence's start. Scratch arrays have a slot for every block; a sequence of a
packed row has slots from start // STEPS + its number on (`core.chunks.slots` says why that is enough). `sequences` has
`cu_seqlens`, T and the number of sequences, as `Sequences` does.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Heads(NamedTuple):
    """An array (batch, steps, heads or groups, columns) of dense columns, or one without columns.

    Where it has columns, strides are counted in a number of elements that divides them all.
    """

    pointer: Any
    batch: Any
    step: Any
    head: Any


class Sequences(NamedTuple):
    """Where sequences begin and end: `cu_seqlens` of a packed row, or None where each row is a sequence of T steps."""

    cu_seqlens: Any
    T: Any
    sequences: Any


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
