"""SSD's vectors of a block for the kernels for Hopper, which read them as they lie. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, owner_of
from retrograd.core.kernels.warpgroups import in_column_order

from ..device import step_sizes, sums_of


@triton.jit(do_not_specialize=["dt", "call"])
def prepare(
    dt,
    A_ptr,
    dt_bias_ptr,
    cu_seqlens_ptr,
    vectors_ptr,
    delta_ptr,
    call,
    H,
    Q: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """vectors (slots, BLOCKS, H, 4, Q) in column order, and delta (slots, H, BLOCKS Q) as it is; BLOCKS a slot.

    With s the sums of delta A log2(e) from a block's start, and e the last of them: 2^(e - s) delta; s; 2^s; delta.
    Outside of the sequence delta is 0.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    blocks = tl.cdiv(H, BLOCK_H)
    part = tl.program_id(0) // blocks
    slot = part // BLOCKS
    head = tl.program_id(0) % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    number, step = owner_of(slot, sequences, BLOCKS * Q)
    row, first, length = bounds_of(number, sequences)
    begin = part % BLOCKS * Q
    j = tl.arange(0, Q)
    t = step + begin + j
    live = ((t >= 0) & (t < length))[:, None] & (head < H)[None, :]
    delta, log = step_sizes(dt, A_ptr, dt_bias_ptr, row, first, t, head, live, H, call, DT_SOFTPLUS)
    sums = sums_of(log, length - step - begin)
    in_array = (head < H)[None, :]
    at = ((tl.cast(slot, tl.int64) * H + head) * BLOCKS * Q)[None, :] + begin + j[:, None]
    tl.store(delta_ptr + at, delta, mask=in_array)
    last = tl.sum(tl.where((j == Q - 1)[:, None], sums, 0.0), axis=0)[None, :]
    at = ((tl.cast(part, tl.int64) * H + head) * (4 * Q))[:, None] + j[None, :]
    in_array = (head < H)[:, None]
    tl.store(vectors_ptr + at, in_column_order(tl.exp2(last - sums) * delta), mask=in_array)
    tl.store(vectors_ptr + at + Q, in_column_order(sums), mask=in_array)
    tl.store(vectors_ptr + at + 2 * Q, in_column_order(tl.exp2(sums)), mask=in_array)
    tl.store(vectors_ptr + at + 3 * Q, in_column_order(delta), mask=in_array)
