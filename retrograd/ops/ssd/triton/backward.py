"""SSD, backward but for dx, on any GPU: what B, C, D and the step sizes get. Symbols: ../README.md.

A pair of steps has a source, which goes into a state, and a target, which reads it. `pairs` takes those within a block,
`through_states` those that a state connects; `finish` (../finish.py) adds up what both find for the decays between.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..device import block_of, bounds_of, load_rows, outside, owner_of, rows_at
from .blocks import add_product, load_state, product


@triton.jit(do_not_specialize=["T", "sequences", "dy_strides", "x_strides", "B_strides", "C_strides"])
def pairs(
    dy_ptr,
    x_ptr,
    B_ptr,
    C_ptr,
    cu_seqlens_ptr,
    delta_ptr,
    sums_ptr,
    dB_within_ptr,
    dC_within_ptr,
    dD_partial_ptr,
    targets_ptr,
    sources_ptr,
    own_ptr,
    T,
    sequences,
    H,
    G,
    dy_strides,
    x_strides,
    B_strides,
    C_strides,
    dD_strides,
    P: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr,
    STAGES: tl.constexpr,
    DY_UNIT: tl.constexpr,
    X_UNIT: tl.constexpr,
    B_UNIT: tl.constexpr,
    C_UNIT: tl.constexpr,
    DTYPE: tl.constexpr,
    SPLIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Pairs of steps within a block; a program takes one, and up to HEADS heads of a group, over which it sums.

    dB_within, dC_within: (B T, G, blocks of heads, N).
    dD_partial: (places, ...), with `dD_strides` of head and channel.
    Of slices, (places, slices, Q): `targets`, what log decays have of the pairs, by the target; `sources` and `own`,
    what delta has as a factor of x, by later targets and by the step itself.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P_BLOCKS: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    N_BLOCKS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    place, group, block, blocks, head, heads = block_of(H, G, HEADS)
    number, step = owner_of(place, T, sequences, cu_seqlens_ptr, Q)
    row, first, length = bounds_of(number, T, cu_seqlens_ptr)
    j = tl.arange(0, Q)
    t = step + j
    live = (t >= 0) & (t < length)
    B_ptr = rows_at(B_ptr, B_strides, row, first, group, B_UNIT)
    C_ptr = rows_at(C_ptr, C_strides, row, first, group, C_UNIT)
    scores = tl.zeros([Q, Q], tl.float32)
    for b in range(N_BLOCKS):
        n = b * BLOCK_N + tl.arange(0, BLOCK_N)
        B = load_rows(B_ptr, t, B_strides[1], n, live, N, B_UNIT)
        C = load_rows(C_ptr, t, C_strides[1], n, live, N, C_UNIT)
        scores = add_product(C, tl.trans(B), scores, DTYPE, SPLIT)
    # No decay lies between a step and itself, and of such a pair row sums less column sums would leave but rounding.
    same = j[:, None] == j[None, :]
    own_score = tl.sum(tl.where(same, scores, 0.0), axis=1)
    scores = tl.where(same, 0.0, scores)
    dscores = tl.zeros([Q, Q], tl.float32)

    for i in tl.range(heads * P_BLOCKS, num_stages=STAGES):
        h = head + i // P_BLOCKS
        p = i % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
        at = (tl.cast(place, tl.int64) * H + h) * Q + j
        sums = tl.load(sums_ptr + at)
        delta = tl.load(delta_ptr + at)
        x = load_rows(rows_at(x_ptr, x_strides, row, first, h, X_UNIT), t, x_strides[1], p, live, P, X_UNIT)
        dy = load_rows(rows_at(dy_ptr, dy_strides, row, first, h, DY_UNIT), t, dy_strides[1], p, live, P, DY_UNIT)
        between = tl.where(j[:, None] >= j[None, :], sums[:, None] - sums[None, :], float("-inf"))
        pair = product(dy, tl.trans(x), DTYPE, SPLIT) * tl.exp2(between)
        dscores += pair * delta[None, :]
        pair *= scores
        at = (tl.cast(place, tl.int64) * (H * P_BLOCKS) + head * P_BLOCKS + i) * Q + j
        tl.store(targets_ptr + at, tl.sum(pair * delta[None, :], axis=1))
        tl.store(sources_ptr + at, tl.sum(pair, axis=0))
        xdy = x.to(tl.float32) * dy.to(tl.float32)
        tl.store(own_ptr + at, tl.sum(xdy, axis=1) * own_score)
        if dD_partial_ptr is not None:
            at = tl.cast(place, tl.int64) * (H * P) + h * dD_strides[0] + p * dD_strides[1]
            tl.store(dD_partial_ptr + at, tl.sum(xdy, axis=0), mask=p < P)

    at = ((row * T + first + t.to(tl.int64)) * blocks + block)[:, None] * N
    for b in range(N_BLOCKS):
        n = b * BLOCK_N + tl.arange(0, BLOCK_N)
        mask = live[:, None] & (n < N)[None, :]
        B = load_rows(B_ptr, t, B_strides[1], n, live, N, B_UNIT)
        tl.store(dC_within_ptr + at + n[None, :], product(dscores, B, DTYPE, SPLIT), mask=mask)
        C = load_rows(C_ptr, t, C_strides[1], n, live, N, C_UNIT)
        tl.store(dB_within_ptr + at + n[None, :], product(tl.trans(dscores), C, DTYPE, SPLIT), mask=mask)


@triton.jit(do_not_specialize=["T", "sequences", "u_strides", "q_strides"])
def through_states(
    u_ptr,
    q_ptr,
    cu_seqlens_ptr,
    delta_ptr,
    sums_ptr,
    states_ptr,
    within_ptr,
    partial_ptr,
    sums_by_step_ptr,
    T,
    sequences,
    H,
    G,
    u_strides,
    q_strides,
    P: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr,
    STAGES: tl.constexpr,
    U_UNIT: tl.constexpr,
    Q_UNIT: tl.constexpr,
    BACK: tl.constexpr,
    DTYPE: tl.constexpr,
    SPLIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Pairs of a step in a block and one before or behind it; a program takes BLOCK_N states, else as in `pairs`.

    Forward: u, q = dy, C; states enter the blocks. BACK: u, q = x, B; states are gradients of those that leave them.
    partial (B T, G, blocks of heads, N) is dC, or dB, with what `within` has of it. Of slices and blocks of states,
    (places, slices, Q): what log decays have of the pairs, by the target; what delta has as a factor of x.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P_BLOCKS: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    N_BLOCKS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    place, group, block, blocks, head, heads = block_of(H, G, HEADS)
    b = place % N_BLOCKS
    place = place // N_BLOCKS
    number, step = owner_of(place, T, sequences, cu_seqlens_ptr, Q)
    row, first, length = bounds_of(number, T, cu_seqlens_ptr)
    j = tl.arange(0, Q)
    n = b * BLOCK_N + tl.arange(0, BLOCK_N)
    t = step + j
    live = (t >= 0) & (t < length)
    q = load_rows(rows_at(q_ptr, q_strides, row, first, group, Q_UNIT), t, q_strides[1], n, live, N, Q_UNIT)
    offsets = ((row * T + first + t.to(tl.int64)) * blocks + block)[:, None] * N + n[None, :]
    mask = live[:, None] & (n < N)[None, :]
    total = tl.load(within_ptr + offsets, mask=mask, other=0.0)

    for i in tl.range(heads * P_BLOCKS, num_stages=STAGES):
        h = head + i // P_BLOCKS
        p = i % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
        at = (tl.cast(place, tl.int64) * H + h) * Q
        scale = tl.load(sums_ptr + at + j)
        if BACK:
            scale = tl.load(sums_ptr + at + Q - 1) - scale
        scale = tl.exp2(scale)
        u = load_rows(rows_at(u_ptr, u_strides, row, first, h, U_UNIT), t, u_strides[1], p, live, P, U_UNIT)
        u = u.to(tl.float32) * scale[:, None]
        state = load_state(states_ptr, place, h, H, p, n, (step >= 0) & (step < length), P, N)
        by_step = tl.sum(product(q, tl.trans(state), DTYPE, SPLIT) * u, axis=1)
        slice = (tl.cast(place, tl.int64) * (H * P_BLOCKS) + head * P_BLOCKS + i) * N_BLOCKS + b
        tl.store(sums_by_step_ptr + slice * Q + j, by_step)
        if BACK:
            u *= tl.load(delta_ptr + at + j)[:, None]
        total = add_product(u, state, total, DTYPE, SPLIT)
    tl.store(partial_ptr + offsets, total, mask=mask)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(place, T, sequences, cu_seqlens_ptr, Q)
        offsets = (cleared.to(tl.int64) * blocks + block)[:, None] * N + n[None, :]
        zeros = tl.zeros([Q, BLOCK_N], tl.float32)
        tl.store(partial_ptr + offsets, zeros, mask=in_none[:, None] & (n < N)[None, :])
