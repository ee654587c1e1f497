"""Attention, forward: a program takes a tile of queries of a head, and walks over the tiles of keys that it sees."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, let_next_start, wait_for_previous

from .pairs import (
    clear_gaps,
    kept,
    load_steps,
    load_tile,
    power,
    scores_of,
    seen,
    store_row,
    store_steps,
    tile_of_queries,
    upscale,
)
from .segments import own_tiles, run_of_queries


@triton.jit
def add_tile(
    sums, q_tile, k, v, bias, slopes, seed_ptr, place, counts, heads, at, start, border,
    SIDES: tl.constexpr, FACTORS: tl.constexpr, DROPPED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, DESCRIBED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The running sums (largest score, sum of exponentials, result) with one more tile of keys."""
    largest, total, result = sums
    batch, _number, first_q, first_k, origin = place
    head, group, row = heads
    EXACT: tl.constexpr = FACTORS[1] == 1.0
    FACTOR: tl.constexpr = FACTORS[3]
    k_tile = load_tile(k, batch, first_k, start, counts[1], group, COLUMNS[0], COLUMNS[2], BLOCK_K, DESCRIBED, origin)
    products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
    i, j = at + tl.arange(0, BLOCK_Q), start + tl.arange(0, BLOCK_K)
    x, _bounded = scores_of(
        products, bias, slopes, place, head, i[:, None], j[None, :], (at, start), counts, border, SIDES, FACTORS,
        BLOCK_Q, BLOCK_K, BIAS,
    )  # fmt: skip
    more = tl.maximum(largest, tl.max(x, axis=1))
    safe = tl.where(more == float("-inf"), 0.0, more)
    before = power((largest - safe) * FACTOR, EXACT)  # 1 if the largest stays, as in a tile that a query does not see
    # Of two products the compiler might round either one, so which one is fused is said here.
    p = power(tl.fma(x, FACTOR, -(safe * FACTOR)[:, None]), EXACT)
    total = total * before + tl.sum(p, axis=1)
    if DROPPED > 0:
        keep = kept(seed_ptr, i, row, first_q, start, DROPPED, BLOCK_Q, BLOCK_K)
        p = tl.where(keep, p, 0.0)
    v_tile = load_tile(v, batch, first_k, start, counts[1], group, COLUMNS[1], COLUMNS[3], BLOCK_K, DESCRIBED, origin)
    result = tl.dot(p.to(v_tile.dtype), v_tile, result * before[:, None], input_precision="ieee")
    return more, total, result


@triton.jit
def attend(
    q, k, v, bias, slopes, sinks, seed_ptr, out, lse, sizes, own, SIDES: tl.constexpr, FACTORS: tl.constexpr,
    DROPPED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DESCRIBED: tl.constexpr,
    BIAS: tl.constexpr, SEGMENTED: tl.constexpr,
):  # fmt: skip
    """out and lse of a tile of queries, `own`."""
    UNIT: tl.constexpr = FACTORS[1]
    FACTOR: tl.constexpr = FACTORS[3]
    BLOCK_V: tl.constexpr = COLUMNS[3]
    batch, head, _tile, number, first_q, queries, first_k, keys, at = own
    origin = batch * sizes[0] if SEGMENTED else 0
    i = at + tl.arange(0, BLOCK_Q)
    column = tl.arange(0, COLUMNS[2])
    q_tile = load_steps(q, batch, first_q, i, queries, head, column, COLUMNS[0], COLUMNS[2])

    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    if sinks.pointer is not None:
        sink = tl.load(sinks.pointer + head * sinks.head) * (UNIT / FACTOR)
        largest = tl.zeros([BLOCK_Q], tl.float32) + sink
        total += tl.where(sink > float("-inf"), 1.0, 0.0)
    result = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    low, first, last, high = seen(at, queries, keys, SIDES[0], SIDES[1], BLOCK_Q, BLOCK_K)
    for start in tl.range(low, high, BLOCK_K):
        largest, total, result = add_tile(
            (largest, total, result), q_tile, k, v, bias, slopes, seed_ptr, (batch, number, first_q, first_k, origin),
            (queries, keys), (head, head // sizes[3], batch * sizes[2] + head), at, start,
            (start < first) | (start >= last), SIDES, FACTORS, DROPPED, COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS,
        )  # fmt: skip

    some = total != 0
    total = tl.where(some, total, 1.0)
    inverse = upscale(DROPPED) / total
    store_steps(out, result * inverse[:, None], batch, first_q, i, queries, head, tl.arange(0, COLUMNS[3]), COLUMNS[1])
    if UNIT == 1.0:
        logarithm = tl.fma(largest, FACTOR, tl.log(total))
    else:
        logarithm = tl.fma(largest, FACTOR, tl.log2(total)) / LOG2E
    logarithm = tl.where(some, logarithm, float("-inf"))
    if SEGMENTED:
        logarithm = tl.where(keys > 0, logarithm, 0.0)
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
    SIDES: tl.constexpr,
    FACTORS: tl.constexpr,
    DROPPED: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BIAS: tl.constexpr,
    SEGMENTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """sizes: Tq, Tk, heads, heads of a group, sequences. COLUMNS: D, V and what holds them. SIDES: of the window.

    FACTORS: of products, or None where they are the scores; the unit of scores, log2(e), or 1 where exponentials are
    exact; the softcap; the factor of scores in exponents. DROPPED: the numbers of dropout, of 2^16, below which a pair
    is dropped. DESCRIBED: k and v are tensor descriptors. BIAS: whether the bias is one; None without a bias.
    SEGMENTED: cu_q_ptr and cu_k_ptr are `segments`' runs.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    if SEGMENTED:
        head, first, tiles, programs = own_tiles(cu_q_ptr, sizes[2], BLOCK_Q)
        for n in tl.range(first, tiles, programs, disable_licm=True):
            attend(
                q, k, v, bias, slopes, sinks, seed_ptr, out, lse, sizes,
                run_of_queries(cu_q_ptr, tiles - 1 - n, head, sizes, BLOCK_Q), SIDES, FACTORS, DROPPED, COLUMNS,
                BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, SEGMENTED,
            )  # fmt: skip
    else:
        own = tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, BLOCK_Q, BIAS)
        head, tile = own[1], own[2]
        clear_gaps(out, cu_q_ptr, sizes[0], sizes[4], tile, head, COLUMNS[1], COLUMNS[3], BLOCK_Q)
        clear_gaps(lse, cu_q_ptr, sizes[0], sizes[4], tile, head, 1, 1, BLOCK_Q)
        attend(
            q, k, v, bias, slopes, sinks, seed_ptr, out, lse, sizes, own, SIDES, FACTORS, DROPPED, COLUMNS, BLOCK_Q,
            BLOCK_K, DESCRIBED, BIAS, SEGMENTED,
        )  # fmt: skip
