"""The gradients of g and beta, from the sums that other kernels leave. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, outside, owner_of


@triton.jit(do_not_specialize=["call"])
def finish(
    vectors_ptr,
    targets_q_ptr,
    targets_k_ptr,
    sources_q_ptr,
    sources_k_ptr,
    own_ptr,
    before_ptr,
    after_ptr,
    both_ptr,
    cu_seqlens_ptr,
    dg_ptr,
    dbeta_ptr,
    call,
    SUMMANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dg, dbeta (B, T, H); a program takes a block of steps and HEADS heads."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    C: tl.constexpr = SUMMANDS.C
    HEADS: tl.constexpr = SUMMANDS.HEADS
    PARTS: tl.constexpr = SUMMANDS.V_BLOCKS * SUMMANDS.K_BLOCKS
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    blocks = tl.cdiv(H, HEADS)
    slot = tl.program_id(0) // blocks
    head = tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    in_array = (j < C)[:, None] & (head < H)[None, :]
    live = ((t >= 0) & (t < length))[:, None] & (head < H)[None, :]
    of_head = tl.cast(slot, tl.int64) * H + head
    # Sums over the steps before a step are made of their own terms: a running sum less its last term loses digits.
    in_block = in_array & (j > 0)[:, None]
    at = (of_head * (2 * C))[None, :] + C + j[:, None]
    beta = tl.load(vectors_ptr + at, mask=in_array, other=0.0)
    beta_before = tl.load(vectors_ptr + at - 1, mask=in_block, other=0.0)
    at = (of_head * C)[None, :] + j[:, None]
    targets = tl.load(targets_q_ptr + at, mask=in_array, other=0.0)
    targets += tl.load(targets_k_ptr + at, mask=in_array, other=0.0)
    sources = tl.load(sources_q_ptr + at, mask=in_array, other=0.0)
    sources += tl.load(sources_k_ptr + at, mask=in_array, other=0.0)
    suffixed = targets - beta * sources
    dbeta = tl.load(own_ptr + at, mask=in_array, other=0.0) + sources
    prefixed = tl.zeros([C, HEADS], tl.float32)
    both = tl.zeros([HEADS], tl.float32)
    for i in range(PARTS):
        at = ((of_head * PARTS + i) * C)[None, :] + j[:, None]
        suffixed += tl.load(before_ptr + at, mask=in_array, other=0.0)
        prefixed += tl.load(after_ptr + at - 1, mask=in_block, other=0.0)
        dbeta += tl.load(after_ptr + at, mask=in_array, other=0.0)
        both += tl.load(both_ptr + of_head * PARTS + i, mask=head < H, other=0.0)
    dg = tl.cumsum(suffixed, axis=0, reverse=True) + tl.cumsum(beta_before * prefixed, axis=0) + both[None, :]
    at = (row * call.T + first + t.to(tl.int64))[:, None] * H + head[None, :]
    tl.store(dg_ptr + at, dg.to(dg_ptr.dtype.element_ty), mask=live)
    tl.store(dbeta_ptr + at, dbeta.to(dbeta_ptr.dtype.element_ty), mask=live)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, C)
        at = cleared.to(tl.int64)[:, None] * H + head[None, :]
        mask = in_none[:, None] & (head < H)[None, :]
        zeros = tl.zeros([C, HEADS], tl.float32)
        tl.store(dg_ptr + at, zeros.to(dg_ptr.dtype.element_ty), mask=mask)
        tl.store(dbeta_ptr + at, zeros.to(dbeta_ptr.dtype.element_ty), mask=mask)
