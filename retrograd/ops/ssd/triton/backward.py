"""SSD, backward but for dx, on any GPU: what B, C, D and the step sizes get. Symbols: ../README.md.

A pair of steps has a source, which goes into a state, and a target, which reads it. `pairs` takes those within a block,
`through_states` those that a state connects; `finish` (../finish.py) adds up what both find for the decays between.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, load_rows, outside, owner_of, rows_at

from ..device import block_of
from .blocks import add_product, load_state, product


@triton.jit(do_not_specialize=["dy", "x", "B", "C", "lengths"])
def pairs(
    dy,
    x,
    B,
    C,
    cu_seqlens_ptr,
    delta_ptr,
    sums_ptr,
    dB_within_ptr,
    dC_within_ptr,
    dD_partial,
    targets_ptr,
    sources_ptr,
    own_ptr,
    lengths,
    groups,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Pairs of steps within a block; a program takes one, and up to HEADS heads of a group, over which it sums.

    dB_within, dC_within: (B T, G, blocks of heads, N).
    dD_partial: (slots, ...), with strides of head and channel.
    Of slices, (slots, slices, Q): `targets`, what log decays have of the pairs, by the target; `sources` and `own`,
    what delta has as a factor of x, by later targets and by the step itself.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P: tl.constexpr = SIZES.P
    N: tl.constexpr = SIZES.N
    Q: tl.constexpr = SIZES.Q
    BLOCK_P: tl.constexpr = SIZES.BLOCK_P
    BLOCK_N: tl.constexpr = SIZES.BLOCK_N
    P_BLOCKS: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    N_BLOCKS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    H = groups.H
    sequences = Sequences(cu_seqlens_ptr, lengths.T, lengths.sequences)
    slot, group, block, blocks, head, heads = block_of(groups, SIZES.HEADS)
    number, step = owner_of(slot, sequences, Q)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, Q)
    t = step + j
    live = (t >= 0) & (t < length)
    B_rows = rows_at(B, row, first, group, SIZES.N_UNIT)
    C_rows = rows_at(C, row, first, group, SIZES.N_UNIT)
    scores = tl.zeros([Q, Q], tl.float32)
    for b in range(N_BLOCKS):
        n = b * BLOCK_N + tl.arange(0, BLOCK_N)
        B_tile = load_rows(B_rows, t, n, live, N, SIZES.N_UNIT)
        C_tile = load_rows(C_rows, t, n, live, N, SIZES.N_UNIT)
        scores = add_product(C_tile, tl.trans(B_tile), scores, OPERANDS)
    # No decay lies between a step and itself, and of such a pair row sums less column sums would leave but rounding.
    same = j[:, None] == j[None, :]
    own_score = tl.sum(tl.where(same, scores, 0.0), axis=1)
    scores = tl.where(same, 0.0, scores)
    dscores = tl.zeros([Q, Q], tl.float32)

    for i in tl.range(heads * P_BLOCKS, num_stages=SIZES.STAGES):
        h = head + i // P_BLOCKS
        p = i % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
        at = (tl.cast(slot, tl.int64) * H + h) * Q + j
        sums = tl.load(sums_ptr + at)
        delta = tl.load(delta_ptr + at)
        x_tile = load_rows(rows_at(x, row, first, h, SIZES.P_UNIT), t, p, live, P, SIZES.P_UNIT)
        dy_tile = load_rows(rows_at(dy, row, first, h, SIZES.P_UNIT), t, p, live, P, SIZES.P_UNIT)
        between = tl.where(j[:, None] >= j[None, :], sums[:, None] - sums[None, :], float("-inf"))
        pair = product(dy_tile, tl.trans(x_tile), OPERANDS) * tl.exp2(between)
        dscores += pair * delta[None, :]
        pair *= scores
        at = (tl.cast(slot, tl.int64) * (H * P_BLOCKS) + head * P_BLOCKS + i) * Q + j
        tl.store(targets_ptr + at, tl.sum(pair * delta[None, :], axis=1))
        tl.store(sources_ptr + at, tl.sum(pair, axis=0))
        xdy = x_tile.to(tl.float32) * dy_tile.to(tl.float32)
        tl.store(own_ptr + at, tl.sum(xdy, axis=1) * own_score)
        if dD_partial.pointer is not None:
            at = tl.cast(slot, tl.int64) * (H * P) + h * dD_partial.head + p * dD_partial.channel
            tl.store(dD_partial.pointer + at, tl.sum(xdy, axis=0), mask=p < P)

    at = ((row * lengths.T + first + t.to(tl.int64)) * blocks + block)[:, None] * N
    for b in range(N_BLOCKS):
        n = b * BLOCK_N + tl.arange(0, BLOCK_N)
        mask = live[:, None] & (n < N)[None, :]
        B_tile = load_rows(B_rows, t, n, live, N, SIZES.N_UNIT)
        tl.store(dC_within_ptr + at + n[None, :], product(dscores, B_tile, OPERANDS), mask=mask)
        C_tile = load_rows(C_rows, t, n, live, N, SIZES.N_UNIT)
        tl.store(dB_within_ptr + at + n[None, :], product(tl.trans(dscores), C_tile, OPERANDS), mask=mask)


@triton.jit(do_not_specialize=["u", "q", "lengths"])
def through_states(
    u,
    q,
    cu_seqlens_ptr,
    delta_ptr,
    sums_ptr,
    states_ptr,
    within_ptr,
    partial_ptr,
    sums_by_step_ptr,
    lengths,
    groups,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    BACK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Pairs of a step in a block and one before or after it; a program takes BLOCK_N states, else as in `pairs`.

    Forward: u, q = dy, C; states enter the blocks. BACK: u, q = x, B; states are gradients of those that leave them.
    partial (B T, G, blocks of heads, N) is dC, or dB, with what `within` has of it. Of slices and blocks of states,
    (slots, slices, Q): what log decays have of the pairs, by the target; what delta has as a factor of x.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P: tl.constexpr = SIZES.P
    N: tl.constexpr = SIZES.N
    Q: tl.constexpr = SIZES.Q
    BLOCK_P: tl.constexpr = SIZES.BLOCK_P
    BLOCK_N: tl.constexpr = SIZES.BLOCK_N
    P_BLOCKS: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    N_BLOCKS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    H = groups.H
    sequences = Sequences(cu_seqlens_ptr, lengths.T, lengths.sequences)
    slot, group, block, blocks, head, heads = block_of(groups, SIZES.HEADS)
    b = slot % N_BLOCKS
    slot = slot // N_BLOCKS
    number, step = owner_of(slot, sequences, Q)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, Q)
    n = b * BLOCK_N + tl.arange(0, BLOCK_N)
    t = step + j
    live = (t >= 0) & (t < length)
    q_tile = load_rows(rows_at(q, row, first, group, SIZES.N_UNIT), t, n, live, N, SIZES.N_UNIT)
    offsets = ((row * lengths.T + first + t.to(tl.int64)) * blocks + block)[:, None] * N + n[None, :]
    mask = live[:, None] & (n < N)[None, :]
    total = tl.load(within_ptr + offsets, mask=mask, other=0.0)

    for i in tl.range(heads * P_BLOCKS, num_stages=SIZES.STAGES):
        h = head + i // P_BLOCKS
        p = i % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
        at = (tl.cast(slot, tl.int64) * H + h) * Q
        scale = tl.load(sums_ptr + at + j)
        if BACK:
            scale = tl.load(sums_ptr + at + Q - 1) - scale
        scale = tl.exp2(scale)
        u_tile = load_rows(rows_at(u, row, first, h, SIZES.P_UNIT), t, p, live, P, SIZES.P_UNIT)
        u_tile = u_tile.to(tl.float32) * scale[:, None]
        state = load_state(states_ptr, slot, h, H, p, n, (step >= 0) & (step < length), SIZES)
        by_step = tl.sum(product(q_tile, tl.trans(state), OPERANDS) * u_tile, axis=1)
        slice = (tl.cast(slot, tl.int64) * (H * P_BLOCKS) + head * P_BLOCKS + i) * N_BLOCKS + b
        tl.store(sums_by_step_ptr + slice * Q + j, by_step)
        if BACK:
            u_tile *= tl.load(delta_ptr + at + j)[:, None]
        total = add_product(u_tile, state, total, OPERANDS)
    tl.store(partial_ptr + offsets, total, mask=mask)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, Q)
        offsets = (cleared.to(tl.int64) * blocks + block)[:, None] * N + n[None, :]
        zeros = tl.zeros([Q, BLOCK_N], tl.float32)
        tl.store(partial_ptr + offsets, zeros, mask=in_none[:, None] & (n < N)[None, :])
