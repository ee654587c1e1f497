"""Attention, backward in two loops: `keys_backward` owns a tile of keys, `queries_backward` a tile of queries."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, pairwise_sum, wait_for_previous

from .pairs import (
    kept,
    keys_seen,
    load_row,
    load_steps,
    scores_of,
    sequence_of,
    store_row,
    store_steps,
    tile_of_queries,
    tiles_of,
)


@triton.jit(do_not_specialize=["rows"])
def deltas(out, dout, dlse, delta, rows, heads, V: tl.constexpr, BLOCK_V: tl.constexpr, OVERLAP: tl.constexpr):
    """<dout, out> - dlse of every query of a head; `rows` are queries."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    tiles = tl.cdiv(rows, 64)
    row = tl.program_id(0) // tiles
    batch, head = row // heads, row % heads
    i = tl.program_id(0) % tiles * 64 + tl.arange(0, 64)
    column = tl.arange(0, BLOCK_V)
    result = load_steps(out, batch, 0, i, rows, head, column, V, BLOCK_V).to(tl.float32)
    incoming = load_steps(dout, batch, 0, i, rows, head, column, V, BLOCK_V).to(tl.float32)
    value = pairwise_sum(result * incoming)
    if dlse.pointer is not None:
        value -= load_row(dlse, batch, 0, i, rows, head)
    store_row(delta, value, batch, 0, i, rows, head)


@triton.jit
def gradients_of(
    q_tile, k_tile, v_tile, dout_tile, lse, delta, bias, slopes, seed_ptr, batch, number, head, row, i, start,
    first_q, first_k, counts, shift, LEFT: tl.constexpr, RIGHT: tl.constexpr, FACTOR: tl.constexpr,
    SOFTCAP: tl.constexpr, DROPPED: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Of a tile of pairs: the probabilities after dropout, and the gradients of the products without their factor."""
    j = start + tl.arange(0, BLOCK_K)
    products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
    x, bounded = scores_of(
        products, bias, slopes, batch, number, head, i, j, first_q, first_k, counts, shift,
        FACTOR, SOFTCAP, LEFT, RIGHT,
    )  # fmt: skip
    p = tl.exp(x - tl.where(lse == float("-inf"), 0.0, lse)[:, None])
    dp = tl.dot(dout_tile, tl.trans(v_tile), input_precision="ieee")
    dropped = p
    if DROPPED > 0:
        keep = kept(seed_ptr, i, row, first_q, start, DROPPED, BLOCK_Q, BLOCK_K)
        inverse: tl.constexpr = 1.0 / (1.0 - DROPPED / 65536.0)
        dropped = tl.where(keep, p * inverse, 0.0)
        dp = tl.where(keep, dp * inverse, 0.0)
    ds = p * (dp - delta[:, None])
    if SOFTCAP is not None:
        ds *= 1.0 - bounded * bounded
    return dropped, ds


@triton.jit(do_not_specialize=["sizes"])
def queries_backward(
    q,
    k,
    v,
    bias,
    slopes,
    seed_ptr,
    cu_q_ptr,
    cu_k_ptr,
    lse,
    dout,
    delta,
    dq,
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
    """dq of a tile of queries."""
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
    dout_tile = load_steps(dout, batch, first_q, i, queries, head, column_v, V, BLOCK_V)
    own_lse = load_row(lse, batch, first_q, i, queries, head)
    own_delta = load_row(delta, batch, first_q, i, queries, head)
    total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    low, high = keys_seen(at, queries, keys, LEFT, RIGHT, BLOCK_Q, BLOCK_K)
    for start in tl.range(low, high, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        k_tile = load_steps(k, batch, first_k, j, keys, head // share, column_d, D, BLOCK_D)
        v_tile = load_steps(v, batch, first_k, j, keys, head // share, column_v, V, BLOCK_V)
        _dropped, ds = gradients_of(
            q_tile, k_tile, v_tile, dout_tile, own_lse, own_delta, bias, slopes, seed_ptr, batch, number, head, row,
            i, start, first_q, first_k, (queries, keys), shift, LEFT, RIGHT, FACTOR, SOFTCAP, DROPPED, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
        total = tl.dot(ds.to(k_tile.dtype), k_tile, total, input_precision="ieee")
    store_steps(dq, total * FACTOR, batch, first_q, i, queries, head, column_d, D)


@triton.jit(do_not_specialize=["sizes"])
def keys_backward(
    q,
    k,
    v,
    bias,
    slopes,
    seed_ptr,
    cu_q_ptr,
    cu_k_ptr,
    lse,
    dout,
    delta,
    dk,
    dv,
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
    """dk and dv of a tile of keys: sums over the heads of its group, and over the tiles of queries that see it."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    D: tl.constexpr = COLUMNS[0]
    V: tl.constexpr = COLUMNS[1]
    BLOCK_D: tl.constexpr = COLUMNS[2]
    BLOCK_V: tl.constexpr = COLUMNS[3]
    LEFT: tl.constexpr = SIDES[0]
    RIGHT: tl.constexpr = SIDES[1]
    Tq, Tk, heads, share, sequences = sizes
    tiles = tiles_of(cu_k_ptr, Tk, sequences, BLOCK_K)
    tile = tl.program_id(0) % tiles
    groups = heads // share
    batch, group = tl.program_id(0) // tiles // groups, tl.program_id(0) // tiles % groups
    number, first_k, keys, first_q, queries, at = sequence_of(
        cu_k_ptr, cu_q_ptr, tile, batch, Tk, Tq, sequences, BLOCK_K
    )
    shift = keys - queries
    j = at + tl.arange(0, BLOCK_K)
    column_d, column_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    k_tile = load_steps(k, batch, first_k, j, keys, group, column_d, D, BLOCK_D)
    v_tile = load_steps(v, batch, first_k, j, keys, group, column_v, V, BLOCK_V)
    total_k = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    total_v = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    low, high = 0, queries
    if RIGHT is not None:
        low = tl.maximum(at - RIGHT - shift, 0) // BLOCK_Q * BLOCK_Q
    if LEFT is not None:
        high = tl.minimum(at + BLOCK_K + LEFT - shift, queries)
    high = tl.where(at < keys, high, 0)
    for own in range(share):
        head = group * share + own
        row = batch * heads + head
        for start in tl.range(low, high, BLOCK_Q):
            i = start + tl.arange(0, BLOCK_Q)
            q_tile = load_steps(q, batch, first_q, i, queries, head, column_d, D, BLOCK_D)
            dout_tile = load_steps(dout, batch, first_q, i, queries, head, column_v, V, BLOCK_V)
            own_lse = load_row(lse, batch, first_q, i, queries, head)
            own_delta = load_row(delta, batch, first_q, i, queries, head)
            p, ds = gradients_of(
                q_tile, k_tile, v_tile, dout_tile, own_lse, own_delta, bias, slopes, seed_ptr, batch, number, head,
                row, i, at, first_q, first_k, (queries, keys), shift, LEFT, RIGHT, FACTOR, SOFTCAP, DROPPED,
                BLOCK_Q, BLOCK_K,
            )  # fmt: skip
            total_v = tl.dot(tl.trans(p.to(dout_tile.dtype)), dout_tile, total_v, input_precision="ieee")
            total_k = tl.dot(tl.trans(ds.to(q_tile.dtype)), q_tile, total_k, input_precision="ieee")
    store_steps(dk, total_k * FACTOR, batch, first_k, j, keys, group, column_d, D)
    store_steps(dv, total_v, batch, first_k, j, keys, group, column_v, V)
