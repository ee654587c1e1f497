"""SSD's results, of every block of steps from the state that enters it, on any GPU; and their mirror image, dx.

Symbols: ../README.md.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, silu, silu_grad, wait_for_previous

from ..device import block_of, bounds_of, load_rows, outside, owner_of, rows_at
from .blocks import add_product, load_state


@triton.jit(do_not_specialize=["T", "sequences", "u_strides", "z_strides", "dout_strides", "k_strides", "q_strides"])
def outputs(
    u_ptr,
    k_ptr,
    q_ptr,
    D_ptr,
    z_ptr,
    dout_ptr,
    cu_seqlens_ptr,
    delta_ptr,
    sums_ptr,
    states_ptr,
    out_ptr,
    dz_ptr,
    dy_ptr,
    T,
    sequences,
    H,
    G,
    u_strides,
    k_strides,
    q_strides,
    z_strides,
    dout_strides,
    P: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr,
    STAGES: tl.constexpr,
    U_UNIT: tl.constexpr,
    K_UNIT: tl.constexpr,
    Q_UNIT: tl.constexpr,
    Z_UNIT: tl.constexpr,
    DOUT_UNIT: tl.constexpr,
    WIDE_D: tl.constexpr,
    BACK: tl.constexpr,
    DTYPE: tl.constexpr,
    SPLIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes a block of steps and up to HEADS heads of a group, which share the scores q k^T.

    Forward: u, k, q = x, B, C; states enter the blocks; out is y, gated by z. With `dout`, the gradient of the gated y,
    no y is stored but the gradients of z and of y before its gate.
    BACK: u, k, q = dy, C, B; states are gradients of those that leave the blocks; out is dx.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P_BLOCKS: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    N_BLOCKS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    place, group, _, _, head, heads = block_of(H, G, HEADS)
    number, step = owner_of(place, T, sequences, cu_seqlens_ptr, Q)
    row, first, length = bounds_of(number, T, cu_seqlens_ptr)
    j = tl.arange(0, Q)
    t = step + j
    live = (t >= 0) & (t < length)
    k_ptr = rows_at(k_ptr, k_strides, row, first, group, K_UNIT)
    q_ptr = rows_at(q_ptr, q_strides, row, first, group, Q_UNIT)
    scores = tl.zeros([Q, Q], tl.float32)
    q = load_rows(q_ptr, t, q_strides[1], tl.arange(0, BLOCK_N), live, N, Q_UNIT)
    for b in range(N_BLOCKS):
        n = b * BLOCK_N + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr, t, k_strides[1], n, live, N, K_UNIT)
        if N_BLOCKS > 1:
            q = load_rows(q_ptr, t, q_strides[1], n, live, N, Q_UNIT)
        scores = add_product(q, tl.trans(k), scores, DTYPE, SPLIT)

    for i in tl.range(heads * P_BLOCKS, num_stages=STAGES):
        h = head + i // P_BLOCKS
        p = i % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
        at = (tl.cast(place, tl.int64) * H + h) * Q
        sums = tl.load(sums_ptr + at + j)
        delta = tl.load(delta_ptr + at + j)
        last = tl.load(sums_ptr + at + Q - 1)
        u = load_rows(rows_at(u_ptr, u_strides, row, first, h, U_UNIT), t, u_strides[1], p, live, P, U_UNIT)
        out = tl.zeros([Q, BLOCK_P], tl.float32)
        for b in range(N_BLOCKS):
            n = b * BLOCK_N + tl.arange(0, BLOCK_N)
            if N_BLOCKS > 1:
                q = load_rows(q_ptr, t, q_strides[1], n, live, N, Q_UNIT)
            state = load_state(states_ptr, place, h, H, p, n, (step >= 0) & (step < length), P, N)
            out = add_product(q, tl.trans(state), out, DTYPE, SPLIT)
        if BACK:
            between = tl.where(j[:, None] <= j[None, :], sums[None, :] - sums[:, None], float("-inf"))
            out = add_product(scores * tl.exp2(between), u, out * tl.exp2(last - sums)[:, None], DTYPE, SPLIT)
            out *= delta[:, None]
        else:
            between = tl.where(j[:, None] >= j[None, :], sums[:, None] - sums[None, :], float("-inf"))
            weights = scores * (tl.exp2(between) * delta[None, :])
            out = add_product(weights, u, out * tl.exp2(sums)[:, None], DTYPE, SPLIT)
        if D_ptr is not None:
            D = tl.load(D_ptr + h * P + p, mask=p < P, other=0.0)[None, :] if WIDE_D else tl.load(D_ptr + h)
            out += D * u.to(tl.float32)
        offsets = (row * T + first + t.to(tl.int64))[:, None] * (H * P) + (h * P + p)[None, :]
        mask = live[:, None] & (p < P)[None, :]
        if z_ptr is not None:
            z = load_rows(rows_at(z_ptr, z_strides, row, first, h, Z_UNIT), t, z_strides[1], p, live, P, Z_UNIT)
            z = z.to(tl.float32)
            if dout_ptr is not None:
                at = rows_at(dout_ptr, dout_strides, row, first, h, DOUT_UNIT)
                dout = load_rows(at, t, dout_strides[1], p, live, P, DOUT_UNIT).to(tl.float32)
                tl.store(dz_ptr + offsets, (dout * out * silu_grad(z)).to(dz_ptr.dtype.element_ty), mask=mask)
                tl.store(dy_ptr + offsets, (dout * silu(z)).to(dy_ptr.dtype.element_ty), mask=mask)
            out *= silu(z)
        if out_ptr is not None:
            tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)
        if cu_seqlens_ptr is not None:
            cleared, in_none = outside(place, T, sequences, cu_seqlens_ptr, Q)
            offsets = cleared.to(tl.int64)[:, None] * (H * P) + (h * P + p)[None, :]
            zeros = tl.zeros([Q, BLOCK_P], tl.float32)
            mask = in_none[:, None] & (p < P)[None, :]
            if out_ptr is not None:
                tl.store(out_ptr + offsets, zeros.to(out_ptr.dtype.element_ty), mask=mask)
            if dz_ptr is not None:
                tl.store(dz_ptr + offsets, zeros.to(dz_ptr.dtype.element_ty), mask=mask)
