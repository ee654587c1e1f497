"""What all kernels of SSD share: where a block of steps lies, and how its rows are read. Symbols: README.md.

A block is Q steps of a sequence, counted from the sequence's start. Scratch arrays have a slot for every block; a
sequence of a packed row has slots from start // Q + its number on (`core.chunks.slots` says why that is enough).
A slice is BLOCK_P channels of a head. `call` has `cu_seqlens`, T and the number of sequences, as `Sequences` does.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, softplus

from .arrays import Heads

# 2 to this power is 0: a log decay below it loses nothing by being it, and the sums that it is in keep their digits.
FLOOR = tl.constexpr(-150.0)


@triton.jit
def bounds_of(number, call):
    """A sequence's row, first step and length; of a packed one, clamped to steps that exist."""
    T = call.T
    if call.cu_seqlens is None:
        return tl.cast(number, tl.int64), 0, T
    else:
        start = tl.minimum(tl.maximum(tl.load(call.cu_seqlens + number), 0), T)
        stop = tl.minimum(tl.maximum(tl.load(call.cu_seqlens + number + 1), start), T)
        return tl.cast(number, tl.int64) * 0, start, stop - start


@triton.jit
def first_slot(number, start, call, STEPS: tl.constexpr):
    """A sequence's first slot in an array with one for every STEPS steps."""
    if call.cu_seqlens is None:
        return number * tl.cdiv(call.T, STEPS)
    else:
        return start // STEPS + number


@triton.jit
def owner_of(slot, call, STEPS: tl.constexpr):
    """The number of the sequence whose slot it may be, and the first step of the slot within the sequence.

    That step is negative, or past the end, where the slot belongs to none.
    """
    T = call.T
    if call.cu_seqlens is None:
        blocks = tl.cdiv(T, STEPS)
        return slot // blocks, slot % blocks * STEPS
    else:
        # First slots grow with the number: the last one that is not after this slot.
        low = 0
        high = call.sequences
        while low + 1 < high:
            middle = (low + high) // 2
            start = tl.minimum(tl.maximum(tl.load(call.cu_seqlens + middle), 0), T)
            before = start // STEPS + middle <= slot
            low = tl.where(before, middle, low)
            high = tl.where(before, high, middle)
        start = tl.minimum(tl.maximum(tl.load(call.cu_seqlens + low), 0), T)
        return low, (slot - start // STEPS - low) * STEPS


@triton.jit
def outside(slot, call, STEPS: tl.constexpr):
    """Steps of a packed row that a slot clears, and which of them are in no sequence.

    There are slots enough for all steps, so one more store a program fills what no sequence writes.
    """
    t = slot * STEPS + tl.arange(0, STEPS)
    start = tl.load(call.cu_seqlens)
    stop = tl.load(call.cu_seqlens + call.sequences)
    return t, (t < call.T) & ((t < start) | (t >= stop))


@triton.jit
def block_of(groups, HEADS):
    """What a program takes: a slot, a group, a block of heads among how many; the block's first head, and how many."""
    heads_a_group = groups.H // groups.G
    blocks_a_group = tl.cdiv(heads_a_group, HEADS)
    blocks = groups.G * blocks_a_group
    block = tl.program_id(0) % blocks
    first = block % blocks_a_group * HEADS
    group = block // blocks_a_group
    heads = tl.minimum(heads_a_group - first, HEADS)
    return tl.program_id(0) // blocks, group, block, blocks, group * heads_a_group + first, heads


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
def limited(delta, call):
    """Within the limits; NaN stays NaN."""
    return tl.where(delta < call.low, call.low, tl.where(delta > call.high, call.high, delta))


@triton.jit
def load_raw(dt, dt_bias_ptr, row, first, t, head, live, H):
    """dt + dt_bias of some heads, (steps, heads), fp32."""
    offsets = tl.cast(row, tl.int64) * dt.batch + (first + t).to(tl.int64)[:, None] * dt.step
    raw = tl.load(dt.pointer + offsets + head.to(tl.int64)[None, :] * dt.head, mask=live, other=0.0).to(tl.float32)
    if dt_bias_ptr is not None:
        raw += tl.load(dt_bias_ptr + head, mask=head < H, other=0.0)[None, :]
    return raw


@triton.jit
def step_sizes(dt, A_ptr, dt_bias_ptr, row, first, t, head, live, H, call, DT_SOFTPLUS: tl.constexpr):
    """Delta of some heads, (steps, heads), 0 in steps that do not live; and its log decay in base 2."""
    delta = load_raw(dt, dt_bias_ptr, row, first, t, head, live, H)
    if DT_SOFTPLUS:
        delta = softplus(delta)
    delta = tl.where(live, limited(delta, call), 0.0)
    log = delta * (tl.load(A_ptr + head, mask=head < H, other=0.0) * LOG2E)[None, :]
    return delta, tl.where(log < FLOOR, FLOOR, log)


@triton.jit
def sums_of(log, count):
    """Sums of log decays from a block's start, (steps, heads); after `count` steps the last of theirs, to the bit.

    A parallel sum adds in another order there and rounds otherwise, which would be a decay where there is none.
    """
    j = tl.arange(0, log.shape[0])[:, None]
    sums = tl.cumsum(log, axis=0)
    last = tl.sum(tl.where(j == count - 1, sums, 0.0), axis=0)
    return tl.where(j < count, sums, last[None, :])
