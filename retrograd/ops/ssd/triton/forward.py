"""SSD's results, of every block of steps from the state that enters it, on any GPU; and their mirror image, dx.

Symbols: ../README.md.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, silu, silu_grad, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, load_rows, outside, owner_of, rows_at

from ..device import block_of
from .blocks import add_product, load_state


@triton.jit(do_not_specialize=["u", "k", "q", "z", "dout", "lengths"])
def outputs(
    u,
    k,
    q,
    D_ptr,
    z,
    dout,
    cu_seqlens_ptr,
    delta_ptr,
    sums_ptr,
    states_ptr,
    out_ptr,
    dz_ptr,
    dy_ptr,
    lengths,
    groups,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    WIDE_D: tl.constexpr,
    BACK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes a block of steps and up to HEADS heads of a group, which share the scores q k^T.

    Forward: u, k, q = x, B, C; states enter the blocks; out is y, gated by z. With `dout`, the gradient of the gated y,
    no y is stored but the gradients of z and of y before its gate.
    BACK: u, k, q = dy, C, B; states are gradients of those that leave the blocks; out is dx.
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
    slot, group, _, _, head, heads = block_of(groups, SIZES.HEADS)
    number, step = owner_of(slot, sequences, Q)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, Q)
    t = step + j
    live = (t >= 0) & (t < length)
    k_rows = rows_at(k, row, first, group, SIZES.N_UNIT)
    q_rows = rows_at(q, row, first, group, SIZES.N_UNIT)
    scores = tl.zeros([Q, Q], tl.float32)
    q_tile = load_rows(q_rows, t, tl.arange(0, BLOCK_N), live, N, SIZES.N_UNIT)
    for b in range(N_BLOCKS):
        n = b * BLOCK_N + tl.arange(0, BLOCK_N)
        k_tile = load_rows(k_rows, t, n, live, N, SIZES.N_UNIT)
        if N_BLOCKS > 1:
            q_tile = load_rows(q_rows, t, n, live, N, SIZES.N_UNIT)
        scores = add_product(q_tile, tl.trans(k_tile), scores, OPERANDS)

    for i in tl.range(heads * P_BLOCKS, num_stages=SIZES.STAGES):
        h = head + i // P_BLOCKS
        p = i % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
        at = (tl.cast(slot, tl.int64) * H + h) * Q
        sums = tl.load(sums_ptr + at + j)
        delta = tl.load(delta_ptr + at + j)
        last = tl.load(sums_ptr + at + Q - 1)
        u_tile = load_rows(rows_at(u, row, first, h, SIZES.P_UNIT), t, p, live, P, SIZES.P_UNIT)
        out = tl.zeros([Q, BLOCK_P], tl.float32)
        for b in range(N_BLOCKS):
            n = b * BLOCK_N + tl.arange(0, BLOCK_N)
            if N_BLOCKS > 1:
                q_tile = load_rows(q_rows, t, n, live, N, SIZES.N_UNIT)
            state = load_state(states_ptr, slot, h, H, p, n, (step >= 0) & (step < length), SIZES)
            out = add_product(q_tile, tl.trans(state), out, OPERANDS)
        if BACK:
            between = tl.where(j[:, None] <= j[None, :], sums[None, :] - sums[:, None], float("-inf"))
            out = add_product(scores * tl.exp2(between), u_tile, out * tl.exp2(last - sums)[:, None], OPERANDS)
            out *= delta[:, None]
        else:
            between = tl.where(j[:, None] >= j[None, :], sums[:, None] - sums[None, :], float("-inf"))
            weights = scores * (tl.exp2(between) * delta[None, :])
            out = add_product(weights, u_tile, out * tl.exp2(sums)[:, None], OPERANDS)
        if D_ptr is not None:
            D = tl.load(D_ptr + h * P + p, mask=p < P, other=0.0)[None, :] if WIDE_D else tl.load(D_ptr + h)
            out += D * u_tile.to(tl.float32)
        offsets = (row * lengths.T + first + t.to(tl.int64))[:, None] * (H * P) + (h * P + p)[None, :]
        mask = live[:, None] & (p < P)[None, :]
        if z.pointer is not None:
            z_tile = load_rows(rows_at(z, row, first, h, SIZES.P_UNIT), t, p, live, P, SIZES.P_UNIT).to(tl.float32)
            if dout.pointer is not None:
                dout_rows = rows_at(dout, row, first, h, SIZES.P_UNIT)
                dout_tile = load_rows(dout_rows, t, p, live, P, SIZES.P_UNIT).to(tl.float32)
                dz_at = dz_ptr + offsets
                tl.store(dz_at, (dout_tile * out * silu_grad(z_tile)).to(dz_ptr.dtype.element_ty), mask=mask)
                tl.store(dy_ptr + offsets, (dout_tile * silu(z_tile)).to(dy_ptr.dtype.element_ty), mask=mask)
            out *= silu(z_tile)
        if out_ptr is not None:
            tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)
        if cu_seqlens_ptr is not None:
            cleared, in_none = outside(slot, sequences, Q)
            offsets = cleared.to(tl.int64)[:, None] * (H * P) + (h * P + p)[None, :]
            zeros = tl.zeros([Q, BLOCK_P], tl.float32)
            mask = in_none[:, None] & (p < P)[None, :]
            if out_ptr is not None:
                tl.store(out_ptr + offsets, zeros.to(out_ptr.dtype.element_ty), mask=mask)
            if dz_ptr is not None:
                tl.store(dz_ptr + offsets, zeros.to(dz_ptr.dtype.element_ty), mask=mask)
