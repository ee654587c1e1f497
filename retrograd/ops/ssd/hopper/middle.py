"""SSD's states that the forward pass did not keep, where it keeps that of every second slot. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, first_slot, load_rows, owner_of, rows_at
from retrograd.core.kernels.warpgroups import column_order

from ..device import block_of
from .blocks import UNIT


@triton.jit(do_not_specialize=["x", "B", "lengths", "each"])
def middle(
    x,
    B,
    vectors_ptr,
    states_ptr,
    cu_seqlens_ptr,
    middle_ptr,
    lengths,
    groups,
    each,
    SIZES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """What enters every second slot of a sequence, (kept states, H, P, N), from what enters the slot before it.

    A slot is 2 Q steps. A program takes BLOCK_N states of up to `each` heads of a group, which share B.
    States as they are kept, vectors as `prepare` makes them.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P: tl.constexpr = SIZES.P
    N: tl.constexpr = SIZES.N
    Q: tl.constexpr = SIZES.Q
    CHANNELS: tl.constexpr = SIZES.CHANNELS
    BLOCK_N: tl.constexpr = SIZES.BLOCK_N
    TILES: tl.constexpr = N // BLOCK_N
    SLICES: tl.constexpr = P // CHANNELS
    part, group, _, _, begin, heads = block_of(groups, each)
    kept = part // TILES
    n = part % TILES * BLOCK_N + tl.arange(0, BLOCK_N)
    H = groups.H
    sequences = Sequences(cu_seqlens_ptr, lengths.T, lengths.sequences)
    number, step = owner_of(kept, sequences, 4 * Q)
    row, first, length = bounds_of(number, sequences)
    if (step >= 0) & (step + 2 * Q < length):
        slot = tl.cast(first_slot(number, first, sequences, 2 * Q) + step // (2 * Q), tl.int64)
        j = tl.arange(0, 2 * Q)
        live = j >= 0
        B_tile = load_rows(rows_at(B, row, first + step, group, UNIT), j, n, live, N, UNIT)
        for i in tl.range(heads * SLICES, num_stages=SIZES.STAGES):
            head = begin + i // SLICES
            p = i % SLICES * CHANNELS + tl.arange(0, CHANNELS)
            near = vectors_ptr + (slot * 2 * H + head) * (4 * Q)
            after = near + tl.cast(H, tl.int64) * (4 * Q)
            decay = tl.load(after + 3 * Q - 1)
            put = tl.load(tl.where(j < Q, near, after) + column_order(j % Q, Q)) * tl.where(j < Q, decay, 1.0)
            x_tile = load_rows(rows_at(x, row, first + step, head, UNIT), j, p, live, P, UNIT)
            at = (tl.cast(kept, tl.int64) * H + head) * (P * N) + (p * N)[:, None] + n[None, :]
            state = tl.load(states_ptr + at).to(tl.float32) * (decay * tl.load(near + 3 * Q - 1))
            state = tl.dot(tl.trans((x_tile * put[:, None]).to(B_tile.dtype)), B_tile, state)
            tl.store(middle_ptr + at, state.to(middle_ptr.dtype.element_ty))
