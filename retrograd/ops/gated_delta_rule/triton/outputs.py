"""The results, of every block from the state that enters it. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..arrays import Sequences
from ..device import bounds_of, load_rows, offsets_of, outside, owner_of, rows_at
from .blocks import add_product, load_state, pairs_at, vectors_at


@triton.jit(do_not_specialize=["q", "call"])
def outputs(
    q,
    written_ptr,
    entering_ptr,
    vectors_ptr,
    scores_ptr,
    cu_seqlens_ptr,
    o_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """o (B, T, H, V); a program takes a block of steps, a head and BLOCK_V of its channels."""
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
    v = tl.program_id(0) % V_BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(0) // V_BLOCKS % H
    slot = tl.program_id(0) // V_BLOCKS // H
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    live = (t >= 0) & (t < length)
    there = (step >= 0) & (step < length)
    q_rows = rows_at(q, row, first, head // (H // call.G), SIZES.K_UNIT)
    o = tl.zeros([C, BLOCK_V], tl.float32)
    for b in range(K_BLOCKS):
        c = b * BLOCK_K + tl.arange(0, BLOCK_K)
        q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT)
        S = load_state(entering_ptr, slot, head, H, v, c, there, SIZES)
        o = add_product(q_tile, tl.trans(S), o, OPERANDS)
    mask = live[:, None] & (v < V)[None, :]
    offsets = offsets_of(row * call.T + first + t, head, H, v, V)
    D = tl.load(written_ptr + offsets, mask=mask, other=0.0)
    scores = tl.load(scores_ptr + pairs_at(slot, head, H, C))
    sums = tl.load(vectors_ptr + vectors_at(slot, head, H, C) + j)
    o = add_product(scores, D, o * (tl.exp2(sums) * call.scale)[:, None], OPERANDS)
    tl.store(o_ptr + offsets, o.to(o_ptr.dtype.element_ty), mask=mask)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, C)
        zeros = tl.zeros([C, BLOCK_V], o_ptr.dtype.element_ty)
        mask = in_none[:, None] & (v < V)[None, :]
        tl.store(o_ptr + offsets_of(cleared, head, H, v, V), zeros, mask=mask)
