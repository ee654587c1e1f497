"""The gradients of g and beta, from the sums that other kernels leave. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences

from ..heads import block_of, put


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
    block = block_of(sequences, H, C, HEADS)
    head = block.head
    j = tl.arange(0, C)
    in_array = (j < C)[:, None] & (head < H)[None, :]
    of_head = tl.cast(block.slot, tl.int64) * H + head
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
    put(dg_ptr, dg, block, sequences, H)
    put(dbeta_ptr, dbeta, block, sequences, H)
