"""Attention, backward: dq and the gradient of a bias that heads do not share, in one walk over the keys."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .backward import add_keys, load_queries, store_steep
from .pairs import clear_gaps, load_bias, pairs_of, seen, store_steps, tile_of_queries, tiles_of


@triton.jit
def add_up_biased(
    q, k, v, bias, slopes, seed_ptr, cu_q_ptr, base, dout, delta, dq, dslopes_ptr, dbias, rows, sizes, own,
    SIDES: tl.constexpr, FACTORS: tl.constexpr, SCALE: tl.constexpr, DROPPED: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DESCRIBED: tl.constexpr, BIAS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """dq of a tile of queries, `own`, and its parts of the gradients of slopes and of the bias.

    SHARED: and those of the same queries in the next row, if there is one. What both have of the gradient of the bias
    is added to that of the rows before, which this program has stored.
    """
    BLOCK_D: tl.constexpr = COLUMNS[2]
    STEEP: tl.constexpr = dslopes_ptr is not None
    batch, head, tile, number, first_q, queries, first_k, keys, at = own
    heads, group = sizes[2], head // sizes[3]
    i = at + tl.arange(0, BLOCK_Q)
    mine = load_queries(q, dout, base, delta, batch, head, first_q, i, queries, COLUMNS)
    total, steep = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    counts = queries, keys
    if SHARED:
        there = batch + 1 < rows
        other_counts = tl.where(there, queries, 0), tl.where(there, keys, 0)
        others = load_queries(q, dout, base, delta, batch + 1, head, first_q, i, other_counts[0], COLUMNS)
        other_total, other_steep = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    low, first, last, high = seen(at, queries, keys, SIDES[0], SIDES[1], BLOCK_Q, BLOCK_K)
    for start in tl.range(low, high, BLOCK_K):
        border = (start < first) | (start >= last)
        place = batch, number, first_q, first_k, 0
        pairs, mask = pairs_of(dbias, place, head, at, start, counts, BLOCK_Q, BLOCK_K)
        before = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        if SHARED and batch > 0:  # a branch, lest the pipeliner keeps shared memory for it
            before = tl.load(pairs, mask=mask, other=0.0)
        added = load_bias(bias, place, head, at, start, counts, BLOCK_Q, BLOCK_K, BIAS)
        total, steep, dx = add_keys(
            (total, steep), mine, k, v, added, slopes, seed_ptr, place, counts,
            (head, group, batch * heads + head), at, start, border, SIDES, FACTORS, DROPPED, COLUMNS, BLOCK_Q, BLOCK_K,
            DESCRIBED, STEEP,
        )  # fmt: skip
        if SHARED:
            other_total, other_steep, more = add_keys(
                (other_total, other_steep), others, k, v, added, slopes, seed_ptr,
                (batch + 1, tl.minimum(number + 1, rows - 1), first_q, first_k, 0), other_counts,
                (head, group, (batch + 1) * heads + head), at, start, border | (not there), SIDES, FACTORS, DROPPED,
                COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, STEEP,
            )  # fmt: skip
            dx += more
        tl.store(pairs, before + dx, mask=mask)
    if STEEP:
        tiles = tiles_of(cu_q_ptr, sizes[0], sizes[4], BLOCK_Q)
        store_steep(dslopes_ptr, steep, (batch * tiles + tile) * heads + head, i, queries)
        if SHARED and there:
            store_steep(dslopes_ptr, other_steep, ((batch + 1) * tiles + tile) * heads + head, i, queries)
    column = tl.arange(0, COLUMNS[2])
    store_steps(dq, total * SCALE, batch, first_q, i, queries, head, column, COLUMNS[0])
    if SHARED:
        store_steps(dq, other_total * SCALE, batch + 1, first_q, i, other_counts[0], head, column, COLUMNS[0])


@triton.jit(do_not_specialize=["sizes", "rows"])
def biased_backward(
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
    dq,
    dslopes_ptr,
    dbias,
    rows,
    sizes,
    SIDES: tl.constexpr,
    FACTORS: tl.constexpr,
    SCALE: tl.constexpr,
    DROPPED: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BIAS: tl.constexpr,
    SHARED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """What `queries_backward` computes, and dbias. SHARED: a program takes its queries in all `rows`, two at a time,
    since these share the bias.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    own = tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, BLOCK_Q, BIAS)
    _batch, head, tile, _number, first_q, queries, first_k, keys, at = own
    clear_gaps(dq, cu_q_ptr, sizes[0], sizes[4], tile, head, COLUMNS[0], COLUMNS[2], BLOCK_Q)
    if SHARED:
        for row in tl.range(0, rows, 2, disable_licm=True):
            add_up_biased(
                q, k, v, bias, slopes, seed_ptr, cu_q_ptr, base, dout, delta, dq, dslopes_ptr, dbias, rows, sizes,
                (row, head, tile, row, first_q, queries, first_k, keys, at), SIDES, FACTORS, SCALE, DROPPED, COLUMNS,
                BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, SHARED,
            )  # fmt: skip
    else:
        add_up_biased(
            q, k, v, bias, slopes, seed_ptr, cu_q_ptr, base, dout, delta, dq, dslopes_ptr, dbias, rows, sizes, own,
            SIDES, FACTORS, SCALE, DROPPED, COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, SHARED,
        )  # fmt: skip
