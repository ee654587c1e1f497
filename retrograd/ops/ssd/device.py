"""What all kernels of SSD share: where a block of steps lies, and how its rows are read. Symbols: README.md.

A block is Q steps of a sequence, counted from the sequence's start. Scratch arrays have a place for every block; a
sequence of a packed row has places from start // Q + its number on (`core.chunks.places` says why that is enough).
A slice is BLOCK_P channels of a head.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, softplus

# 2 to this power is 0: a log decay below it loses nothing by being it, and the sums that it is in keep their digits.
FLOOR = tl.constexpr(-150.0)


@triton.jit
def bounds_of(number, T, cu_seqlens_ptr):
    """A sequence's row, first step and length; of a packed one, clamped to steps that exist."""
    if cu_seqlens_ptr is None:
        return tl.cast(number, tl.int64), 0, T
    else:
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + number), 0), T)
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + number + 1), start), T)
        return tl.cast(number, tl.int64) * 0, start, stop - start


@triton.jit
def first_place(number, start, T, cu_seqlens_ptr, STEPS: tl.constexpr):
    """A sequence's first place in an array with one for every STEPS steps."""
    if cu_seqlens_ptr is None:
        return number * tl.cdiv(T, STEPS)
    else:
        return start // STEPS + number


@triton.jit
def owner_of(place, T, sequences, cu_seqlens_ptr, STEPS: tl.constexpr):
    """The number of the sequence whose place it may be, and the first step of the place within the sequence.

    That step is negative, or past the end, where the place belongs to none.
    """
    if cu_seqlens_ptr is None:
        blocks = tl.cdiv(T, STEPS)
        return place // blocks, place % blocks * STEPS
    else:
        # First places grow with the number: the last one that is not behind this place.
        low = 0
        high = sequences
        while low + 1 < high:
            middle = (low + high) // 2
            start = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + middle), 0), T)
            before = start // STEPS + middle <= place
            low = tl.where(before, middle, low)
            high = tl.where(before, high, middle)
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + low), 0), T)
        return low, (place - start // STEPS - low) * STEPS


@triton.jit
def block_of(H, G, HEADS):
    """What a program takes: a place, a group, a block of heads among how many; the block's first head, and how many."""
    heads_a_group = H // G
    blocks_a_group = tl.cdiv(heads_a_group, HEADS)
    blocks = G * blocks_a_group
    block = tl.program_id(0) % blocks
    first = block % blocks_a_group * HEADS
    group = block // blocks_a_group
    heads = tl.minimum(heads_a_group - first, HEADS)
    return tl.program_id(0) // blocks, group, block, blocks, group * heads_a_group + first, heads


@triton.jit
def rows_at(ptr, strides, row, step, head, UNIT: tl.constexpr):
    """Where a head's rows start, at a step of a row; strides (batch, time, head) are in UNIT elements."""
    if ptr is None:
        return
    else:
        offset = row * strides[0] + tl.cast(step, tl.int64) * strides[1] + tl.cast(head, tl.int64) * strides[2]
        return ptr + offset * UNIT


@triton.jit
def load_rows(ptr, t, time_stride, columns, live, COUNT: tl.constexpr, UNIT: tl.constexpr):
    """Rows (steps, columns) from `rows_at`; zeros in steps that do not live, and from column COUNT on."""
    offsets = (t.to(tl.int64) * time_stride)[:, None] * UNIT + columns[None, :]
    return tl.load(ptr + offsets, mask=live[:, None] & (columns < COUNT)[None, :], other=0.0)


@triton.jit
def limited(delta, low, high):
    """Within the limit; NaN stays NaN."""
    return tl.where(delta < low, low, tl.where(delta > high, high, delta))


@triton.jit
def load_raw(dt_ptr, dt_bias_ptr, dt_strides, row, first, t, head, live, H):
    """dt + dt_bias of some heads, (steps, heads), fp32."""
    offsets = tl.cast(row, tl.int64) * dt_strides[0] + (first + t).to(tl.int64)[:, None] * dt_strides[1]
    raw = tl.load(dt_ptr + offsets + head.to(tl.int64)[None, :] * dt_strides[2], mask=live, other=0.0).to(tl.float32)
    if dt_bias_ptr is not None:
        raw += tl.load(dt_bias_ptr + head, mask=head < H, other=0.0)[None, :]
    return raw


@triton.jit
def step_sizes(
    dt_ptr, A_ptr, dt_bias_ptr, dt_strides, row, first, t, head, live, H, low, high, DT_SOFTPLUS: tl.constexpr
):  # fmt: skip
    """Delta of some heads, (steps, heads), 0 in steps that do not live; and its log decay in base 2."""
    delta = load_raw(dt_ptr, dt_bias_ptr, dt_strides, row, first, t, head, live, H)
    if DT_SOFTPLUS:
        delta = softplus(delta)
    delta = tl.where(live, limited(delta, low, high), 0.0)
    log = delta * (tl.load(A_ptr + head, mask=head < H, other=0.0) * LOG2E)[None, :]
    return delta, tl.where(log < FLOOR, FLOOR, log)


@triton.jit
def sums_of(log, count):
    """Sums of log decays from a block's start, (steps, heads); behind `count` steps the last of theirs, to the bit.

    A parallel sum adds in another order there and rounds otherwise, which would be a decay where there is none.
    """
    j = tl.arange(0, log.shape[0])[:, None]
    sums = tl.cumsum(log, axis=0)
    last = tl.sum(tl.where(j == count - 1, sums, 0.0), axis=0)
    return tl.where(j < count, sums, last[None, :])


@triton.jit
def outside(place, T, sequences, cu_seqlens_ptr, STEPS: tl.constexpr):
    """Steps of a packed row that a place clears, and which of them are in no sequence.

    There are places enough for all steps, so one more store a program fills what no sequence writes.
    """
    t = place * STEPS + tl.arange(0, STEPS)
    start = tl.load(cu_seqlens_ptr)
    stop = tl.load(cu_seqlens_ptr + sequences)
    return t, (t < T) & ((t < start) | (t >= stop))
