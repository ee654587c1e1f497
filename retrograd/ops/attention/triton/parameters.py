"""Attention, backward: the gradients of a bias, of sinks and of slopes, in sums of a fixed order."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..device import load_row
from .pairs import (
    dropped,
    kept,
    load_keys,
    load_queries,
    probabilities,
    scores_of,
    tiles_of,
    tiles_of_keys,
    tiles_of_queries,
    work_on_keys,
    work_on_queries,
)
from .tuples import Inputs, Sequence


@triton.jit(do_not_specialize=["sizes", "summed"])
def bias_backward(
    q,
    k,
    v,
    bias,
    slopes,
    seed_ptr,
    cu_q_ptr,
    cu_k_ptr,
    base,
    dout,
    delta,
    dbias,
    partial_ptr,
    sizes,
    summed,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    SHARED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The gradient of a tile of the bias: a sum over the rows and heads (`summed`) that share it, and over its axes of
    size 1 (`SHARED`); where both are, one of `partial` (rows of the bias, heads of the bias, tiles of queries), to be
    summed.

    TILES.described: q, k, v and dout are tensor descriptors.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    inputs = Inputs(q, k, v, bias, slopes, seed_ptr)
    OVER_QUERIES: tl.constexpr = SHARED.queries
    OVER_KEYS: tl.constexpr = SHARED.keys
    OWNS_KEYS: tl.constexpr = OVER_QUERIES and not OVER_KEYS
    PAIRS: tl.constexpr = not OVER_QUERIES and not OVER_KEYS
    across = tl.cdiv(sizes.keys, TILES.keys) if PAIRS else 1
    if OWNS_KEYS:
        tiles = tiles_of(cu_k_ptr, sizes.keys, sizes.sequences, TILES.keys)
    else:
        tiles = tiles_of(cu_q_ptr, sizes.queries, sizes.sequences, TILES.queries)
    tile = tl.program_id(0) // across % tiles
    own = tl.program_id(0) // across // tiles
    batch, head = own // (sizes.heads // summed.heads), own % (sizes.heads // summed.heads)
    if OWNS_KEYS:
        work = work_on_keys(cu_q_ptr, cu_k_ptr, batch, head, tile, sizes, TILES.keys)
        low, _first, _last, high = tiles_of_queries(work.sequence, work.at, SCORES, TILES)
    else:
        work = work_on_queries(cu_q_ptr, cu_k_ptr, batch, head, tile, sizes, TILES.queries)
        low, _first, _last, high = tiles_of_keys(work.sequence, work.at, SCORES, TILES)
        if PAIRS:
            start = tl.program_id(0) % across * TILES.keys
            high = tl.where(start >= low, tl.minimum(high, start + TILES.keys), 0)
            low = start
    at, first_q, queries = work.at, work.sequence.first_q, work.sequence.queries
    first_k, keys = work.sequence.first_k, work.sequence.keys
    STEP: tl.constexpr = TILES.queries if OWNS_KEYS else TILES.keys
    steps = tl.cdiv(tl.maximum(high - low, 0), STEP)  # that each row and head has
    total = tl.full([TILES.queries, TILES.keys], 0.0, tl.float32)
    for step in tl.range(0, steps * summed.rows * summed.heads):
        one, start = step // steps, low + step % steps * STEP
        b, h = batch + one // summed.heads, head + one % summed.heads
        n = b if cu_q_ptr is None else work.sequence.number
        sequence = Sequence(b, n, first_q, queries, first_k, keys, 0)
        at_q, at_k = (start, at) if OWNS_KEYS else (at, start)
        i, j = at_q + tl.arange(0, TILES.queries), at_k + tl.arange(0, TILES.keys)
        q_tile = load_queries(q, sequence, at_q, h, TILES.D, TILES.BLOCK_D, TILES)
        k_tile = load_keys(k, sequence, at_k, h // sizes.share, TILES.D, TILES.BLOCK_D, TILES)
        products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        x, _bounded = scores_of(products, inputs, sequence, h, i[:, None], j[None, :], at_q, at_k, True, SCORES, TILES)
        p = probabilities(x, load_row(base, b, first_q, i, queries, h)[:, None], SCORES)
        v_tile = load_keys(v, sequence, at_k, h // sizes.share, TILES.V, TILES.BLOCK_V, TILES)
        dout_tile = load_queries(dout, sequence, at_q, h, TILES.V, TILES.BLOCK_V, TILES)
        keep = None
        if SCORES.dropped > 0:
            row = b * sizes.heads + h
            keep = kept(seed_ptr, i, row, first_q, at_k, SCORES.dropped, TILES.queries, TILES.keys)
        dp = dropped(tl.dot(dout_tile, tl.trans(v_tile), input_precision="ieee"), keep, SCORES.dropped)
        total += p * (dp - load_row(delta, b, first_q, i, queries, h)[:, None])
    if OVER_QUERIES and OVER_KEYS:
        tl.store(partial_ptr + own * tiles + tile, tl.sum(tl.sum(total, axis=1), axis=0))
    else:
        start = dbias.pointer + tl.cast(batch, tl.int64) * dbias.batch + tl.cast(head, tl.int64) * dbias.head
        i, j = at + tl.arange(0, TILES.queries), (low if PAIRS else at) + tl.arange(0, TILES.keys)
        at_i, at_j = tl.cast(first_q + i, tl.int64) * dbias.query, tl.cast(first_k + j, tl.int64) * dbias.key
        if OVER_KEYS:
            tl.store(start + at_i, tl.sum(total, axis=1), mask=(at >= 0) & (i < queries))
        elif OVER_QUERIES:
            tl.store(start + at_j, tl.sum(total, axis=0), mask=(at >= 0) & (j < keys))
        else:
            mask = (at >= 0) & (i < queries)[:, None] & (j < keys)[None, :]
            tl.store(start + at_i[:, None] + at_j[None, :], total, mask=mask)


@triton.jit(do_not_specialize=["rows", "sequences"])
def sinks_backward(
    sinks, lse, cu_q_ptr, ids, delta, dsinks_ptr, rows, heads, sequences, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    """Parts (batch, heads) of the gradient of sinks; `rows` are queries."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    sink = tl.load(sinks.pointer + head * sinks.head)
    low, high = 0, rows
    if cu_q_ptr is not None:  # steps of no sequence may have gradients, and have no sink
        low, high = tl.load(cu_q_ptr), tl.load(cu_q_ptr + sequences)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, rows, BLOCK):
        i = start + tl.arange(0, BLOCK)
        logarithm = load_row(lse, batch, 0, i, rows, head)
        live = (i >= low) & (i < high) & (logarithm > float("-inf"))
        if ids.pointer is not None:
            live = live & (load_row(ids, batch, 0, i, rows, 0) >= 0)
        total -= tl.where(live, tl.exp(sink - logarithm) * load_row(delta, batch, 0, i, rows, head), 0.0)
    tl.store(dsinks_ptr + tl.program_id(0), tl.sum(total, axis=0))
