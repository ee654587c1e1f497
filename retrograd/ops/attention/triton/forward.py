"""Attention, forward: a program takes a tile of queries of a head, and walks over the tiles of keys that it sees."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, let_next_start, wait_for_previous

from ..device import load_steps, store_row, store_steps
from .pairs import clear_gaps, kept, load_keys, power, scores_of, tile_of_queries, tiles_of_keys, upscale
from .segments import own_tiles, run_of_queries
from .tuples import Inputs


@triton.jit
def add_tile(
    sums,
    q_tile,
    inputs,
    sequence,
    head,
    sizes,
    at,
    start,
    border,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
):
    """The running sums (largest score, sum of exponentials, result) with one more tile of keys."""
    largest, total, result = sums
    EXACT: tl.constexpr = SCORES.unit == 1.0
    FACTOR: tl.constexpr = SCORES.exponent
    group, row = head // sizes.share, sequence.batch * sizes.heads + head
    k_tile = load_keys(inputs.k, sequence, start, group, TILES.D, TILES.BLOCK_D, TILES)
    products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
    i, j = at + tl.arange(0, TILES.queries), start + tl.arange(0, TILES.keys)
    x, _bounded = scores_of(products, inputs, sequence, head, i[:, None], j[None, :], at, start, border, SCORES, TILES)
    more = tl.maximum(largest, tl.max(x, axis=1))
    safe = tl.where(more == float("-inf"), 0.0, more)
    before = power((largest - safe) * FACTOR, EXACT)  # 1 if the largest stays, as in a tile that a query does not see
    # Of two products the compiler might round either one, so which one is fused is said here.
    p = power(tl.fma(x, FACTOR, -(safe * FACTOR)[:, None]), EXACT)
    total = total * before + tl.sum(p, axis=1)
    if SCORES.dropped > 0:
        keep = kept(inputs.seed_ptr, i, row, sequence.first_q, start, SCORES.dropped, TILES.queries, TILES.keys)
        p = tl.where(keep, p, 0.0)
    v_tile = load_keys(inputs.v, sequence, start, group, TILES.V, TILES.BLOCK_V, TILES)
    result = tl.dot(p.to(v_tile.dtype), v_tile, result * before[:, None], input_precision="ieee")
    return more, total, result


@triton.jit
def attend(
    inputs,
    sinks,
    out,
    lse,
    sizes,
    work,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    SEGMENTED: tl.constexpr,
):
    """out and lse of a tile of queries."""
    FACTOR: tl.constexpr = SCORES.exponent
    sequence, head, at = work.sequence, work.head, work.at
    batch, first_q, queries = sequence.batch, sequence.first_q, sequence.queries
    i = at + tl.arange(0, TILES.queries)
    column = tl.arange(0, TILES.BLOCK_D)
    q_tile = load_steps(inputs.q, batch, first_q, i, queries, head, column, TILES.D, TILES.BLOCK_D)

    largest = tl.full([TILES.queries], float("-inf"), tl.float32)
    total = tl.full([TILES.queries], 0.0, tl.float32)
    if sinks.pointer is not None:
        sink = tl.load(sinks.pointer + head * sinks.head) * (SCORES.unit / FACTOR)
        largest = tl.full([TILES.queries], 0.0, tl.float32) + sink
        total += tl.where(sink > float("-inf"), 1.0, 0.0)
    result = tl.full([TILES.queries, TILES.BLOCK_V], 0.0, tl.float32)
    low, first, last, high = tiles_of_keys(sequence, at, SCORES, TILES)
    for start in tl.range(low, high, TILES.keys):
        border = (start < first) | (start >= last)
        largest, total, result = add_tile(
            (largest, total, result), q_tile, inputs, sequence, head, sizes, at, start, border, SCORES, TILES
        )

    some = total != 0
    total = tl.where(some, total, 1.0)
    inverse = upscale(SCORES.dropped) / total
    result *= inverse[:, None]
    column = tl.arange(0, TILES.BLOCK_V)
    store_steps(out, result, batch, first_q, i, queries, head, column, TILES.V)
    if SCORES.unit == 1.0:
        logarithm = tl.fma(largest, FACTOR, tl.log(total))
    else:
        logarithm = tl.fma(largest, FACTOR, tl.log2(total)) / LOG2E
    logarithm = tl.where(some, logarithm, float("-inf"))
    if SEGMENTED:
        logarithm = tl.where(sequence.keys > 0, logarithm, 0.0)
    store_row(lse, logarithm, batch, first_q, i, queries, head)


@triton.jit(do_not_specialize=["sizes"])
def forward(
    q,
    k,
    v,
    bias,
    slopes,
    sinks,
    seed_ptr,
    cu_q_ptr,
    cu_k_ptr,
    out,
    lse,
    sizes,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    SEGMENTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """TILES.described: k and v are tensor descriptors. SEGMENTED: cu_q_ptr and cu_k_ptr are `segments`' runs."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    inputs = Inputs(q, k, v, bias, slopes, seed_ptr)
    if SEGMENTED:
        head, first, tiles, programs = own_tiles(cu_q_ptr, sizes.heads, TILES.queries)
        for n in tl.range(first, tiles, programs, disable_licm=True):
            work = run_of_queries(cu_q_ptr, tiles - 1 - n, head, sizes, TILES.queries)
            attend(inputs, sinks, out, lse, sizes, work, SCORES, TILES, SEGMENTED)
    else:
        work = tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, SCORES, TILES)
        T, sequences = sizes.queries, sizes.sequences
        clear_gaps(out, cu_q_ptr, T, sequences, work.tile, work.head, TILES.V, TILES.BLOCK_V, TILES.queries)
        clear_gaps(lse, cu_q_ptr, T, sequences, work.tile, work.head, 1, 1, TILES.queries)
        attend(inputs, sinks, out, lse, sizes, work, SCORES, TILES, SEGMENTED)
