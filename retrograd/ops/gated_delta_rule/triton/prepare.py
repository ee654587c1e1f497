"""What a block is before its state is known: the inverse T, the scores of queries, sums of log decays.

Symbols: ../README.md.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, load_rows, owner_of, rows_at

from ..device import decays_between, fine_sums_of, log_decays, sums_of
from .blocks import add_product, pairs_at, vectors_at
from .inverse import inverse


@triton.jit(do_not_specialize=["q", "k", "g", "beta", "call"])
def prepare(
    q,
    k,
    g,
    beta,
    cu_seqlens_ptr,
    vectors_ptr,
    inverse_ptr,
    scores_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes a block of steps and a head.

    vectors (slots, H, 2, C), fp32: sums of log decays in base 2 from the block's start, and beta, 0 outside of the
    sequence. inverse (slots, H, C, C): T. scores (slots, H, C, C): scale tril(QK beta_s).
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    K: tl.constexpr = SIZES.K
    C: tl.constexpr = SIZES.C
    BLOCK_K: tl.constexpr = SIZES.BLOCK_K
    K_BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    slot = tl.program_id(0) // H
    head = tl.program_id(0) % H
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    live = (t >= 0) & (t < length)
    k_rows = rows_at(k, row, first, head // (H // call.G), SIZES.K_UNIT)
    q_rows = rows_at(q, row, first, head // (H // call.G), SIZES.K_UNIT)
    of_keys = tl.zeros([C, C], tl.float32)
    of_queries = tl.zeros([C, C], tl.float32)
    for b in range(K_BLOCKS):
        c = b * BLOCK_K + tl.arange(0, BLOCK_K)
        k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT)
        q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT)
        of_keys = add_product(k_tile, tl.trans(k_tile), of_keys, OPERANDS)
        of_queries = add_product(q_tile, tl.trans(k_tile), of_queries, OPERANDS)

    g_rows = rows_at(g, row, first, head, 1)
    beta_rows = rows_at(beta, row, first, head, 1)
    log = tl.load(g_rows.pointer + t.to(tl.int64) * g.step, mask=live, other=0.0)
    rate = tl.load(beta_rows.pointer + t.to(tl.int64) * beta.step, mask=live, other=0.0).to(tl.float32)
    if OPERANDS.SPLIT:
        sums = fine_sums_of(log, length - step)
    else:
        sums = sums_of(log_decays(log), length - step)
    at = vectors_ptr + vectors_at(slot, head, H, C) + j
    tl.store(at, sums)
    tl.store(at + C, rate)
    decays = decays_between(sums) * rate[None, :]
    at = pairs_at(slot, head, H, C)
    if scores_ptr is not None:
        tl.store(scores_ptr + at, (of_queries * decays * call.scale).to(OPERANDS.DTYPE))
    if inverse_ptr is not None:
        found = inverse(tl.where(j[:, None] > j[None, :], of_keys * decays, 0.0), OPERANDS)
        tl.store(inverse_ptr + at, found.to(OPERANDS.DTYPE))
