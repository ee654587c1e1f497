"""SSD's states that the forward pass did not keep, where it keeps that of every second place. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..device import block_of, bounds_of, first_place, load_rows, owner_of, rows_at
from .prepare import column_order


@triton.jit(do_not_specialize=["T", "sequences", "each", "x_strides", "B_strides"])
def middle(
    x_ptr,
    B_ptr,
    vectors_ptr,
    states_ptr,
    cu_seqlens_ptr,
    middle_ptr,
    T,
    sequences,
    H,
    G,
    each,
    x_strides,
    B_strides,
    P: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    UNIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """What enters every second place of a sequence, (kept states, H, P, N), from what enters the place before it.

    A place is 2 Q steps. A program takes BLOCK_N states of up to `each` heads of a group, which share B.
    States as they are kept, vectors as `prepare` makes them; strides in UNIT elements.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    TILES: tl.constexpr = N // BLOCK_N
    SLICES: tl.constexpr = P // CHANNELS
    part, group, _, _, begin, heads = block_of(H, G, each)
    kept = part // TILES
    n = part % TILES * BLOCK_N + tl.arange(0, BLOCK_N)
    number, step = owner_of(kept, T, sequences, cu_seqlens_ptr, 4 * Q)
    row, first, length = bounds_of(number, T, cu_seqlens_ptr)
    if (step >= 0) & (step + 2 * Q < length):
        place = tl.cast(first_place(number, first, T, cu_seqlens_ptr, 2 * Q) + step // (2 * Q), tl.int64)
        j = tl.arange(0, 2 * Q)
        live = j >= 0
        B = load_rows(rows_at(B_ptr, B_strides, row, first + step, group, UNIT), j, B_strides[1], n, live, N, UNIT)
        for i in tl.range(heads * SLICES, num_stages=STAGES):
            head = begin + i // SLICES
            p = i % SLICES * CHANNELS + tl.arange(0, CHANNELS)
            near = vectors_ptr + (place * 2 * H + head) * (4 * Q)
            behind = near + tl.cast(H, tl.int64) * (4 * Q)
            decay = tl.load(behind + 3 * Q - 1)
            put = tl.load(tl.where(j < Q, near, behind) + column_order(j % Q, Q)) * tl.where(j < Q, decay, 1.0)
            x_at = rows_at(x_ptr, x_strides, row, first + step, head, UNIT)
            x = load_rows(x_at, j, x_strides[1], p, live, P, UNIT)
            at = (tl.cast(kept, tl.int64) * H + head) * (P * N) + (p * N)[:, None] + n[None, :]
            state = tl.load(states_ptr + at).to(tl.float32) * (decay * tl.load(near + 3 * Q - 1))
            state = tl.dot(tl.trans((x * put[:, None]).to(B.dtype)), B, state)
            tl.store(middle_ptr + at, state.to(middle_ptr.dtype.element_ty))
