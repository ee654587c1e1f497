"""Attention, forward: a program takes a tile of queries of a head, and walks over the tiles of keys that it sees."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .pairs import kept, keys_seen, load_steps, scores_of, store_row, store_steps, tile_of_queries


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
    FACTOR: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DROPPED: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """sizes: Tq, Tk, heads, heads of a group, sequences. COLUMNS: D, V and what holds them.

    DROPPED: the numbers of dropout, of 2^16, below which a pair is dropped.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    D: tl.constexpr = COLUMNS[0]
    V: tl.constexpr = COLUMNS[1]
    BLOCK_D: tl.constexpr = COLUMNS[2]
    BLOCK_V: tl.constexpr = COLUMNS[3]
    LEFT: tl.constexpr = SIDES[0]
    RIGHT: tl.constexpr = SIDES[1]
    heads, share = sizes[2], sizes[3]
    batch, head, number, first_q, queries, first_k, keys, at = tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, BLOCK_Q)
    row, shift = batch * heads + head, keys - queries
    i = at + tl.arange(0, BLOCK_Q)
    column_d, column_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    q_tile = load_steps(q, batch, first_q, i, queries, head, column_d, D, BLOCK_D)

    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    if sinks.pointer is not None:
        sink = tl.load(sinks.pointer + head * sinks.head)
        largest = tl.zeros([BLOCK_Q], tl.float32) + sink
        total += tl.where(sink > float("-inf"), 1.0, 0.0)
    result = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    low, high = keys_seen(at, queries, keys, LEFT, RIGHT, BLOCK_Q, BLOCK_K)
    for start in tl.range(low, high, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        k_tile = load_steps(k, batch, first_k, j, keys, head // share, column_d, D, BLOCK_D)
        products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        x, _bounded = scores_of(
            products, bias, slopes, batch, number, head, i, j, first_q, first_k, (queries, keys), shift,
            FACTOR, SOFTCAP, LEFT, RIGHT,
        )  # fmt: skip
        more = tl.maximum(largest, tl.max(x, axis=1))
        safe = tl.where(more == float("-inf"), 0.0, more)
        before = tl.exp(largest - safe)
        p = tl.exp(x - safe[:, None])
        total = total * before + tl.sum(p, axis=1)
        largest = more
        if DROPPED > 0:
            keep = kept(seed_ptr, i, row, first_q, start, DROPPED, BLOCK_Q, BLOCK_K)
            p = tl.where(keep, p * (1.0 / (1.0 - DROPPED / 65536.0)), 0.0)
        v_tile = load_steps(v, batch, first_k, j, keys, head // share, column_v, V, BLOCK_V)
        result = tl.dot(p.to(v_tile.dtype), v_tile, result * before[:, None], input_precision="ieee")

    some = total > 0
    total = tl.where(some, total, 1.0)
    store_steps(out, result / total[:, None], batch, first_q, i, queries, head, column_v, V)
    store_row(lse, tl.where(some, largest + tl.log(total), float("-inf")), batch, first_q, i, queries, head)
