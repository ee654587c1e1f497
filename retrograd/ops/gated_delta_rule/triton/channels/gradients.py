"""Gradients where each channel of K has a decay of its own. Symbols: ../../README.md.

A pair of steps has a source, which goes into a state, and a target, which reads it.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, load_rows, outside, owner_of, rows_at

from ...device import offsets_of
from ..blocks import add_product, load_state, pairs_at, product, vectors_at
from .levels import have_level, is_target, sums_at, toward_middle


@triton.jit(do_not_specialize=["dout", "call"])
def channel_pairs(
    dout,
    dv_rows_ptr,
    written_ptr,
    cu_seqlens_ptr,
    pairs_ptr,
    own_ptr,
    dv_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Pairs of steps within a block, without decays; a program takes one and a head.

    pairs (slots, 2 H, C, C): below the diagonal P, and N for the next, above it their transposes. own (slots, H, C): P
    of a step with itself. dv (B, T, H, V): that of `backward_states`, and zeros outside of sequences.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    V: tl.constexpr = SIZES.V
    C: tl.constexpr = SIZES.C
    BLOCK_V: tl.constexpr = SIZES.BLOCK_V
    V_BLOCKS: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    slot = tl.program_id(0) // H
    head = tl.program_id(0) % H
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    live = (t >= 0) & (t < length)
    rows = rows_at(dout, row, first, head, SIZES.V_UNIT)
    P = tl.zeros([C, C], tl.float32)
    N = tl.zeros([C, C], tl.float32)
    for b in tl.range(V_BLOCKS, num_stages=SIZES.STAGES):
        v = b * BLOCK_V + tl.arange(0, BLOCK_V)
        offsets = offsets_of(row * call.T + first + t, head, H, v, V)
        mask = live[:, None] & (v < V)[None, :]
        D = tl.load(written_ptr + offsets, mask=mask, other=0.0)
        do = load_rows(rows, t, v, live, V, SIZES.V_UNIT)
        dv = tl.load(dv_rows_ptr + offsets, mask=mask, other=0.0)
        P = add_product(do, tl.trans(D), P, OPERANDS)
        N = add_product(dv, tl.trans(D), N, OPERANDS)
        tl.store(dv_ptr + offsets, dv, mask=mask)
        if cu_seqlens_ptr is not None:
            cleared, in_none = outside(slot, sequences, C)
            mask = in_none[:, None] & (v < V)[None, :]
            tl.store(dv_ptr + offsets_of(cleared, head, H, v, V), tl.zeros([C, BLOCK_V], dv.dtype), mask=mask)
    P *= call.scale
    own = tl.sum(tl.where(j[:, None] == j[None, :], P, 0.0), axis=1)
    tl.store(own_ptr + (tl.cast(slot, tl.int64) * H + head) * C + j, own)
    below = j[:, None] > j[None, :]
    P = tl.where(below, P, 0.0)
    N = tl.where(below, -N, 0.0)
    tl.store(pairs_ptr + pairs_at(slot, 2 * head, 2 * H, C), (P + tl.trans(P)).to(OPERANDS.DTYPE))
    tl.store(pairs_ptr + pairs_at(slot, 2 * head + 1, 2 * H, C), (N + tl.trans(N)).to(OPERANDS.DTYPE))


@triton.jit(do_not_specialize=["q", "k", "dout", "call"])
def channel_gradients(
    q,
    k,
    dout,
    vectors_ptr,
    sums_ptr,
    written_ptr,
    dv_rows_ptr,
    entering_ptr,
    leaving_ptr,
    pairs_ptr,
    own_ptr,
    cu_seqlens_ptr,
    dq_ptr,
    dk_ptr,
    dg_ptr,
    parts_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dq, dk (B, T, G, K) and dg (B, T, H, K); a program takes a block, a key head and BLOCK_K channels.

    It sums over the key head's heads. parts (slots, H K-blocks, C): the gradient of beta by blocks of channels.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    C: tl.constexpr = SIZES.C
    BLOCK_K: tl.constexpr = SIZES.BLOCK_K
    BLOCK_V: tl.constexpr = SIZES.BLOCK_V
    K_BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    V_BLOCKS: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    H = call.H
    G = call.G
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    part = tl.program_id(0) % K_BLOCKS
    c = part * BLOCK_K + tl.arange(0, BLOCK_K)
    group = tl.program_id(0) // K_BLOCKS % G
    slot = tl.program_id(0) // K_BLOCKS // G
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    live = (t >= 0) & (t < length)
    there = (step >= 0) & (step < length)
    q_rows = rows_at(q, row, first, group, SIZES.K_UNIT)
    k_rows = rows_at(k, row, first, group, SIZES.K_UNIT)
    in_rows = live[:, None] & (c < K)[None, :]
    dq = tl.zeros([C, BLOCK_K], tl.float32)
    dk = tl.zeros([C, BLOCK_K], tl.float32)

    each = H // G
    for i in tl.range(each, num_stages=1):
        h = group * each + i
        do_rows = rows_at(dout, row, first, h, SIZES.V_UNIT)
        x1 = tl.zeros([C, BLOCK_K], tl.float32)
        x2 = tl.zeros([C, BLOCK_K], tl.float32)
        for b in tl.range(V_BLOCKS, num_stages=1):
            v = b * BLOCK_V + tl.arange(0, BLOCK_V)
            mask = live[:, None] & (v < V)[None, :]
            offsets = offsets_of(row * call.T + first + t, h, H, v, V)
            S = load_state(entering_ptr, slot, h, H, v, c, there, SIZES)
            x1 = add_product(load_rows(do_rows, t, v, live, V, SIZES.V_UNIT), S, x1, OPERANDS)
            x2 = add_product(tl.load(dv_rows_ptr + offsets, mask=mask, other=0.0), S, x2, OPERANDS)
        at = (tl.cast(slot, tl.int64) * H + h) * C
        beta = tl.load(vectors_ptr + vectors_at(slot, h, H, C) + C + j)[:, None]
        own = tl.load(own_ptr + at + j)[:, None]
        sums = tl.load(sums_ptr + sums_at(slot, h, H, j, c, SIZES), mask=(c < K)[None, :], other=0.0)
        q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT)
        k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT)
        x1 *= tl.exp2(sums) * call.scale
        x2 *= -tl.exp2(sums)
        dq += x1 + own * beta * k_tile
        dk += x2
        inner = q_tile * x1 + k_tile * x2
        as_source = own * q_tile
        head_sums_ptr = sums_ptr + at * K
        P = pairs_ptr + pairs_at(slot, 2 * h, 2 * H, C)
        N = pairs_ptr + pairs_at(slot, 2 * h + 1, 2 * H, C)
        dq, as_source, inner = add_pairs(
            q_tile, k_tile, beta, tl.load(P), sums, head_sums_ptr, c, dq, as_source, inner, SIZES, OPERANDS
        )
        dk, as_source, inner = add_pairs(
            k_tile, k_tile, beta, tl.load(N), sums, head_sums_ptr, c, dk, as_source, inner, SIZES, OPERANDS
        )
        x3 = tl.zeros([C, BLOCK_K], tl.float32)
        both = tl.zeros([BLOCK_K], tl.float32)
        for b in tl.range(V_BLOCKS, num_stages=1):
            v = b * BLOCK_V + tl.arange(0, BLOCK_V)
            mask = live[:, None] & (v < V)[None, :]
            offsets = offsets_of(row * call.T + first + t, h, H, v, V)
            S = load_state(entering_ptr, slot, h, H, v, c, there, SIZES)
            S_gradient = load_state(leaving_ptr, slot, h, H, v, c, there, SIZES)
            x3 = add_product(tl.load(written_ptr + offsets, mask=mask, other=0.0), S_gradient, x3, OPERANDS)
            both += tl.sum(S.to(tl.float32) * S_gradient.to(tl.float32), axis=0)
        last = tl.load(sums_ptr + (at + C - 1) * K + c, mask=c < K, other=0.0)
        x3 *= tl.exp2(last[None, :] - sums)
        as_source += x3
        dk += beta * as_source
        dg = tl.cumsum(inner, axis=0, reverse=True) + sums_before(beta * k_tile * x3) + (both * tl.exp2(last))[None, :]
        at = (tl.cast(slot, tl.int64) * H + h) * K_BLOCKS + part
        tl.store(parts_ptr + at * C + j, tl.sum(k_tile * as_source, axis=1))
        at = offsets_of(row * call.T + first + t, h, H, c, K)
        tl.store(dg_ptr + at, dg.to(dg_ptr.dtype.element_ty), mask=in_rows)
        if cu_seqlens_ptr is not None:
            cleared, in_none = outside(slot, sequences, C)
            mask = in_none[:, None] & (c < K)[None, :]
            zeros = tl.zeros([C, BLOCK_K], dg_ptr.dtype.element_ty)
            tl.store(dg_ptr + offsets_of(cleared, h, H, c, K), zeros, mask=mask)

    at = offsets_of(row * call.T + first + t, group, G, c, K)
    tl.store(dq_ptr + at, dq.to(dq_ptr.dtype.element_ty), mask=in_rows)
    tl.store(dk_ptr + at, dk.to(dk_ptr.dtype.element_ty), mask=in_rows)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, C)
        at = offsets_of(cleared, group, G, c, K)
        mask = in_none[:, None] & (c < K)[None, :]
        zeros = tl.zeros([C, BLOCK_K], dq_ptr.dtype.element_ty)
        tl.store(dq_ptr + at, zeros, mask=mask)
        tl.store(dk_ptr + at, zeros, mask=mask)


@triton.jit
def add_pairs(
    targets, sources, beta, weights, sums, head_sums_ptr, c, to_target, to_source, inner,
    SIZES: tl.constexpr, OPERANDS: tl.constexpr
):  # fmt: skip
    """Adds what pairs of steps within a block give: to a target, to a source before beta, and to the decays between.

    Of the decays it adds to `inner` what a step gets as target less what it gives as source.
    """
    C: tl.constexpr = SIZES.C
    LEVELS: tl.constexpr = 4 + (C > 16) + (C > 32)
    for level in tl.range(LEVELS, num_stages=1):
        factors = toward_middle(sums, head_sums_ptr, c, level, SIZES)
        target = is_target(level, C)
        rows = tl.where(target, targets, sources) * (factors * tl.where(target, 1.0, beta))
        rows = rows.to(OPERANDS.DTYPE)
        x = product(tl.where(have_level(level, C), weights, 0.0), rows, OPERANDS)
        # Both sides of a pair are products of the same rounded factors: before and behind both steps they are equal.
        y = rows.to(tl.float32) * x
        inner = tl.where(target, inner + y, inner - y)
        x *= factors
        to_target += tl.where(target, x, 0.0)
        to_source += tl.where(target, 0.0, x)
    return to_target, to_source, inner


@triton.jit
def sums_before(x):
    """x (steps, channels) summed over the steps before each: a running sum less x would lose digits."""
    j = tl.arange(0, x.shape[0])[:, None] + tl.zeros(x.shape, tl.int32)
    before = tl.gather(x, tl.maximum(j - 1, 0), axis=0)
    return tl.cumsum(tl.where(j > 0, before, 0.0), axis=0)
