"""The results, of every block from the state that enters it; and the states that are kept. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, first_slot, load_rows, outside, owner_of, rows_at

from ..device import offsets_of
from .blocks import add_product, load_state, pairs_at, states_at, vectors_at


@triton.jit(do_not_specialize=["q", "call"])
def outputs(
    q,
    written_ptr,
    entering_ptr,
    vectors_ptr,
    scores_ptr,
    cu_seqlens_ptr,
    o_ptr,
    kept_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    KEEP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """o (B, T, H, V); a program takes a block of steps, a head and BLOCK_V of its channels.

    With a decay for each channel, q is q_grow of `channel_rows`, and there are no vectors.
    kept, of slots for every KEEP steps, (slots, H, V, K): what enters them, zeros in slots that have no steps.
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
    kept_slot = first_slot(number, first, sequences, KEEP) + step // KEEP
    o = tl.zeros([C, BLOCK_V], tl.float32)
    for b in range(K_BLOCKS):
        c = b * BLOCK_K + tl.arange(0, BLOCK_K)
        q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT)
        S = load_state(entering_ptr, slot, head, H, v, c, there, SIZES)
        o = add_product(q_tile, tl.trans(S), o, OPERANDS)
        in_tile = (v < V)[:, None] & (c < K)[None, :]
        at = states_at(kept_ptr, kept_slot, head, H, v, c, SIZES)
        tl.store(at, S, mask=in_tile & there & (step % KEEP == 0))
        if cu_seqlens_ptr is not None:
            at = states_at(kept_ptr, slot, head, H, v, c, SIZES)
            tl.store(at, tl.zeros([BLOCK_V, BLOCK_K], S.dtype), mask=in_tile & is_empty(slot, sequences, KEEP))
    mask = live[:, None] & (v < V)[None, :]
    offsets = offsets_of(row * call.T + first + t, head, H, v, V)
    D = tl.load(written_ptr + offsets, mask=mask, other=0.0)
    scores = tl.load(scores_ptr + pairs_at(slot, head, H, C))
    if vectors_ptr is None:
        o *= call.scale
    else:
        sums = tl.load(vectors_ptr + vectors_at(slot, head, H, C) + j)
        o *= (tl.exp2(sums) * call.scale)[:, None]
    o = add_product(scores, D, o, OPERANDS)
    tl.store(o_ptr + offsets, o.to(o_ptr.dtype.element_ty), mask=mask)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, C)
        zeros = tl.zeros([C, BLOCK_V], o_ptr.dtype.element_ty)
        mask = in_none[:, None] & (v < V)[None, :]
        tl.store(o_ptr + offsets_of(cleared, head, H, v, V), zeros, mask=mask)


@triton.jit
def is_empty(slot, sequences, STEPS: tl.constexpr):
    """Whether a packed row has this slot in an array with one for every STEPS steps, and no sequence has steps in it.

    There are as many slots of blocks, or more, and each clears the one of its number.
    """
    number, step = owner_of(slot, sequences, STEPS)
    _, _, length = bounds_of(number, sequences)
    return ((step < 0) | (step >= length)) & (slot < sequences.T // STEPS + sequences.sequences)
