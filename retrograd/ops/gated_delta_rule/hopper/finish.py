"""The gradients of g and beta, from the sums that `grads` leaves. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences

from ..heads import block_of, put


@triton.jit(do_not_specialize=["call"])
def finish(
    vectors_ptr,
    sums_ptr,
    both_ptr,
    cu_seqlens_ptr,
    dg_ptr,
    dbeta_ptr,
    call,
    C: tl.constexpr,
    BOTH: tl.constexpr,
    HEADS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dg, dbeta (B, T, H); a program takes a block of steps and HEADS heads.

    sums (slots, H, 8, C): in two parts of columns q x1 - k x2, and k x3; what beta has of later queries and of later
    keys in the block; of the query of its own step; what log decays have of both, by the target. both (slots, H, BOTH):
    parts of the sum of G S.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    block = block_of(sequences, H, C, HEADS)
    head = block.head
    j = tl.arange(0, C)
    there = (block.step >= 0) & (block.step < block.length)
    in_array = (j < C)[:, None] & (head < H)[None, :] & there
    of_head = tl.cast(block.slot, tl.int64) * H + head
    # Sums over the steps before a step are made of their own terms: a running sum less its last term loses digits.
    in_block = in_array & (j > 0)[:, None]
    at = (of_head * (2 * C))[None, :] + C + j[:, None]
    beta = tl.load(vectors_ptr + at, mask=in_array, other=0.0)
    beta_before = tl.load(vectors_ptr + at - 1, mask=in_block, other=0.0)
    end = tl.load(vectors_ptr + of_head * (2 * C) + C - 1, mask=head < H, other=0.0)
    at = sums_ptr + (of_head * (8 * C))[None, :] + j[:, None]
    suffixed = tl.load(at, mask=in_array, other=0.0) + tl.load(at + C, mask=in_array, other=0.0)
    after = tl.load(at + 2 * C, mask=in_array, other=0.0) + tl.load(at + 3 * C, mask=in_array, other=0.0)
    prefixed = tl.load(at + 2 * C - 1, mask=in_block, other=0.0) + tl.load(at + 3 * C - 1, mask=in_block, other=0.0)
    sources = tl.load(at + 4 * C, mask=in_array, other=0.0) + tl.load(at + 5 * C, mask=in_array, other=0.0)
    dbeta = after + sources + tl.load(at + 6 * C, mask=in_array, other=0.0)
    suffixed += tl.load(at + 7 * C, mask=in_array, other=0.0) - beta * sources
    part = tl.arange(0, BOTH)
    at = both_ptr + (of_head * BOTH)[None, :] + part[:, None]
    both = tl.sum(tl.load(at, mask=(part < BOTH)[:, None] & (head < H)[None, :] & there, other=0.0), axis=0)
    both *= tl.exp2(end)
    dg = tl.cumsum(suffixed, axis=0, reverse=True) + tl.cumsum(beta_before * prefixed, axis=0) + both[None, :]
    put(dg_ptr, dg, block, sequences, H)
    put(dbeta_ptr, dbeta, block, sequences, H)
