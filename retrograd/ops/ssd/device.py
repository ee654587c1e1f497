"""What all kernels of SSD share: the heads that a program takes, step sizes and log decays. Symbols: README.md.

A block is Q steps of a sequence, see `core/kernels/sequences.py`; a slice is BLOCK_P channels of a head.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, softplus

# 2 to this power is 0: a log decay below it loses nothing by being it, and the sums that it is in keep their digits.
FLOOR = tl.constexpr(-150.0)


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
