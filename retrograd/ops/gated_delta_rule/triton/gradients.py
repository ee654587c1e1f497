"""The gradients of every block, from the state that enters it and the gradient of the one that leaves it.

Symbols: ../README.md. A pair of steps has a source, which goes into a state, and a target, which reads it. `pairs`
takes those within a block, `through_states` those that a state connects; `finish` adds up what both find for the
decays between, and for beta.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, load_rows, outside, owner_of, rows_at

from ..device import decays_between, offsets_of
from .blocks import add_product, load_state, pairs_at, product, vectors_at


@triton.jit(do_not_specialize=["targets", "sources", "gradient", "call"])
def pairs(
    targets,
    sources,
    gradient,
    vectors_ptr,
    written_ptr,
    cu_seqlens_ptr,
    factors_ptr,
    by_target_ptr,
    by_source_ptr,
    own_ptr,
    dv_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OF_KEYS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Pairs of steps within a block; a program takes one and a key head, over whose heads it sums.

    Of queries: targets, sources, gradient = q, k, do. OF_KEYS: k, k, dv, the dv of `backward_states`, which is copied.
    factors (slots, G, C, C): of sources in the gradient of targets, and transposed of targets in that of sources; of
    keys, which are both, the sum. Of heads, (slots, H, C): what log decays have of the pairs, by the target; what beta
    has of them, `by_source` by later targets, `own` by the step itself.
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
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    slot = tl.program_id(0) // call.G
    group = tl.program_id(0) % call.G
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    live = (t >= 0) & (t < length)
    target_rows = rows_at(targets, row, first, group, SIZES.K_UNIT)
    source_rows = rows_at(sources, row, first, group, SIZES.K_UNIT)
    scores = tl.zeros([C, C], tl.float32)
    for b in range(K_BLOCKS):
        c = b * BLOCK_K + tl.arange(0, BLOCK_K)
        target = load_rows(target_rows, t, c, live, K, SIZES.K_UNIT)
        source = load_rows(source_rows, t, c, live, K, SIZES.K_UNIT)
        scores = add_product(target, tl.trans(source), scores, OPERANDS)
    same = j[:, None] == j[None, :]
    factors = tl.zeros([C, C], tl.float32)

    each = H // call.G
    for i in tl.range(each, num_stages=1):
        h = group * each + i
        rows = rows_at(gradient, row, first, h, SIZES.V_UNIT)
        pair = tl.zeros([C, C], tl.float32)
        for b in tl.range(V_BLOCKS, num_stages=SIZES.STAGES):
            v = b * BLOCK_V + tl.arange(0, BLOCK_V)
            offsets = offsets_of(row * call.T + first + t, h, H, v, V)
            mask = live[:, None] & (v < V)[None, :]
            D = tl.load(written_ptr + offsets, mask=mask, other=0.0)
            tile = load_rows(rows, t, v, live, V, SIZES.V_UNIT)
            pair = add_product(tile, tl.trans(D), pair, OPERANDS)
            if OF_KEYS:
                tl.store(dv_ptr + offsets, tile, mask=mask)
                if cu_seqlens_ptr is not None:
                    cleared, in_none = outside(slot, sequences, C)
                    zeros = tl.zeros([C, BLOCK_V], tile.dtype)
                    mask = in_none[:, None] & (v < V)[None, :]
                    tl.store(dv_ptr + offsets_of(cleared, h, H, v, V), zeros, mask=mask)
        at = vectors_ptr + vectors_at(slot, h, H, C) + j
        sums = tl.load(at)
        beta = tl.load(at + C)
        if OF_KEYS:
            pair = tl.where(same, 0.0, -pair * decays_between(sums))
        else:
            pair *= decays_between(sums) * call.scale
        factors += pair * beta[None, :]
        pair *= scores
        at = (tl.cast(slot, tl.int64) * H + h) * C + j
        if not OF_KEYS:
            # No decay lies between a step and itself, and of this pair row sums less column sums would leave rounding.
            tl.store(own_ptr + at, tl.sum(tl.where(same, pair, 0.0), axis=1))
            pair = tl.where(same, 0.0, pair)
        tl.store(by_target_ptr + at, tl.sum(pair * beta[None, :], axis=1))
        tl.store(by_source_ptr + at, tl.sum(pair, axis=0))
    if OF_KEYS:
        factors += tl.trans(factors)
    tl.store(factors_ptr + pairs_at(slot, group, call.G, C), factors.to(OPERANDS.DTYPE))


@triton.jit(do_not_specialize=["q", "k", "dout", "call"])
def through_states(
    q,
    k,
    dout,
    vectors_ptr,
    written_ptr,
    dv_rows_ptr,
    entering_ptr,
    leaving_ptr,
    to_q_ptr,
    to_k_ptr,
    cu_seqlens_ptr,
    dq_ptr,
    dk_ptr,
    before_ptr,
    after_ptr,
    both_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Pairs of a step in a block and one before or after it; a program takes BLOCK_K channels, else as in `pairs`.

    dq, dk (B, T, G, K), with what `pairs` has of them. Of heads, blocks of V and blocks of K, (slots, H V-blocks
    K-blocks, C): `before`, what log decays have of the state that entered, by the step that read it; `after`, what beta
    has of the state that leaves. `both`, without the axis of steps: of pairs on either side of the block.
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
    dq = tl.zeros([C, BLOCK_K], tl.float32)
    dk = tl.zeros([C, BLOCK_K], tl.float32)

    each = H // G
    for i in tl.range(each * V_BLOCKS, num_stages=SIZES.STAGES):
        h = group * each + i // V_BLOCKS
        v = i % V_BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
        at = vectors_ptr + vectors_at(slot, h, H, C)
        sums = tl.load(at + j)
        beta = tl.load(at + C + j)
        last = tl.load(at + C - 1)
        # q and k are read again for every head: what is made of them would otherwise be kept in registers.
        q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT).to(tl.float32)
        k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT).to(tl.float32)
        do = load_rows(rows_at(dout, row, first, h, SIZES.V_UNIT), t, v, live, V, SIZES.V_UNIT)
        mask = live[:, None] & (v < V)[None, :]
        offsets = offsets_of(row * call.T + first + t, h, H, v, V)
        dv = tl.load(dv_rows_ptr + offsets, mask=mask, other=0.0)
        D = tl.load(written_ptr + offsets, mask=mask, other=0.0)
        S = load_state(entering_ptr, slot, h, H, v, c, there, SIZES)
        S_gradient = load_state(leaving_ptr, slot, h, H, v, c, there, SIZES)
        grow = tl.exp2(sums)
        x = product(do, S, OPERANDS) * (grow * call.scale)[:, None]
        dq += x
        before = tl.sum(x * q_tile, axis=1)
        x = product(dv, S, OPERANDS) * grow[:, None]
        dk -= x
        before -= tl.sum(x * k_tile, axis=1)
        x = product(D, S_gradient, OPERANDS) * tl.exp2(last - sums)[:, None]
        dk += x * beta[:, None]
        at = (tl.cast(slot, tl.int64) * (H * V_BLOCKS) + group * each * V_BLOCKS + i) * K_BLOCKS + part
        tl.store(before_ptr + at * C + j, before)
        tl.store(after_ptr + at * C + j, tl.sum(x * k_tile, axis=1))
        both = tl.sum(tl.sum(S.to(tl.float32) * S_gradient.to(tl.float32), axis=1), axis=0)
        tl.store(both_ptr + at, both * tl.exp2(last))

    q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT)
    k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT)
    at = pairs_at(slot, group, G, C)
    to_q = tl.load(to_q_ptr + at)
    dq = add_product(to_q, k_tile, dq, OPERANDS)
    dk = add_product(tl.trans(to_q), q_tile, dk, OPERANDS)
    dk = add_product(tl.load(to_k_ptr + at), k_tile, dk, OPERANDS)
    offsets = offsets_of(row * call.T + first + t, group, G, c, K)
    mask = live[:, None] & (c < K)[None, :]
    tl.store(dq_ptr + offsets, dq.to(dq_ptr.dtype.element_ty), mask=mask)
    tl.store(dk_ptr + offsets, dk.to(dk_ptr.dtype.element_ty), mask=mask)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, C)
        offsets = offsets_of(cleared, group, G, c, K)
        mask = in_none[:, None] & (c < K)[None, :]
        zeros = tl.zeros([C, BLOCK_K], dq_ptr.dtype.element_ty)
        tl.store(dq_ptr + offsets, zeros, mask=mask)
        tl.store(dk_ptr + offsets, zeros, mask=mask)
