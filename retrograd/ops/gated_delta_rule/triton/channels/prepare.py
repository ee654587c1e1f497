"""`prepare` where each channel of K has a decay of its own. Symbols: ../../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, load_rows, owner_of, rows_at

from ..blocks import pairs_at, product, vectors_at
from ..inverse import inverse
from .levels import have_level, sums_at, toward_middle


@triton.jit(do_not_specialize=["q", "k", "beta", "call"])
def prepare_channels(
    q,
    k,
    beta,
    sums_ptr,
    cu_seqlens_ptr,
    vectors_ptr,
    inverse_ptr,
    scores_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """As `prepare`, from the sums of `channel_rows`: of vectors it writes beta alone.

    Without inverse_ptr and scores_ptr, where these are saved, it writes nothing else.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    K: tl.constexpr = SIZES.K
    C: tl.constexpr = SIZES.C
    BLOCK_K: tl.constexpr = SIZES.BLOCK_K
    K_BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    LEVELS: tl.constexpr = 4 + (C > 16) + (C > 32)
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    slot = tl.program_id(0) // H
    head = tl.program_id(0) % H
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    live = (t >= 0) & (t < length)
    if inverse_ptr is not None:
        k_rows = rows_at(k, row, first, head // (H // call.G), SIZES.K_UNIT)
        q_rows = rows_at(q, row, first, head // (H // call.G), SIZES.K_UNIT)
        head_sums_ptr = sums_ptr + (tl.cast(slot, tl.int64) * H + head) * (C * K)
        below = j[:, None] > j[None, :]
        own = tl.zeros([C], tl.float32)
        of_keys = tl.zeros([C, C], tl.float32)
        of_queries = tl.zeros([C, C], tl.float32)
        for b in tl.range(K_BLOCKS, num_stages=1):
            c = b * BLOCK_K + tl.arange(0, BLOCK_K)
            k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT).to(tl.float32)
            q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT).to(tl.float32)
            sums = tl.load(sums_ptr + sums_at(slot, head, H, j, c, SIZES), mask=(c < K)[None, :], other=0.0)
            own += tl.sum(q_tile * k_tile, axis=1)
            for level in tl.range(LEVELS, num_stages=1):
                factors = toward_middle(sums, head_sums_ptr, c, level, SIZES)
                sources = tl.trans((k_tile * factors).to(OPERANDS.DTYPE))
                pairs = below & have_level(level, C)
                of_keys += tl.where(pairs, product(k_tile * factors, sources, OPERANDS), 0.0)
                of_queries += tl.where(pairs, product(q_tile * factors, sources, OPERANDS), 0.0)
    beta_rows = rows_at(beta, row, first, head, 1)
    rate = tl.load(beta_rows.pointer + t.to(tl.int64) * beta.step, mask=live, other=0.0).to(tl.float32)
    tl.store(vectors_ptr + vectors_at(slot, head, H, C) + C + j, rate)
    if inverse_ptr is not None:
        of_queries = tl.where(j[:, None] == j[None, :], own[:, None], of_queries)
        at = pairs_at(slot, head, H, C)
        tl.store(scores_ptr + at, (of_queries * rate[None, :] * call.scale).to(OPERANDS.DTYPE))
        found = inverse(of_keys * rate[None, :], OPERANDS)
        tl.store(inverse_ptr + at, found.to(OPERANDS.DTYPE))
