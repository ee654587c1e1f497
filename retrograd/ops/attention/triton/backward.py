"""Attention, backward in two loops: `keys_backward` owns a tile of keys, `queries_backward` a tile of queries."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, pairwise_sum, wait_for_previous

from .pairs import (
    clear_gaps,
    dropped,
    kept,
    load_row,
    load_steps,
    load_tile,
    probabilities,
    scores_of,
    seen,
    store_row,
    store_steps,
    tile_of_keys,
    tile_of_queries,
    tiles_of,
)
from .segments import own_tiles, run_of_keys, run_of_queries
from .turns import add_in_turn


@triton.jit(do_not_specialize=["rows"])
def deltas(
    out,
    dout,
    lse,
    dlse,
    delta,
    base,
    rows,
    heads,
    UNIT: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Of every query of a head: delta, <dout, out> - dlse; base, lse in the unit of scores, 0 where it is -inf.

    `rows` are queries. UNIT: of scores, 1 where operands are fp32.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    tiles = tl.cdiv(rows, BLOCK)
    row = tl.program_id(0) // tiles
    batch, head = row // heads, row % heads
    i = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    if UNIT == 1.0:
        # As the products with v, in the same order: what cancels with one visible key then cancels exactly.
        products = tl.zeros([BLOCK, BLOCK], tl.float32)
        CHUNK: tl.constexpr = min(BLOCK_V, BLOCK)
        for start in range(0, BLOCK_V, CHUNK):  # not unrolled: the loads of all chunks would not fit into registers
            column = start + tl.arange(0, CHUNK)
            result = load_steps(out, batch, 0, i, rows, head, column, V, CHUNK)
            incoming = load_steps(dout, batch, 0, i, rows, head, column, V, CHUNK)
            products = tl.dot(incoming, tl.trans(result), products, input_precision="ieee")
        own = tl.arange(0, BLOCK)[:, None] == tl.arange(0, BLOCK)[None, :]
        value = tl.sum(tl.where(own, products, 0.0), axis=1)
    else:
        column = tl.arange(0, BLOCK_V)
        result = load_steps(out, batch, 0, i, rows, head, column, V, BLOCK_V).to(tl.float32)
        incoming = load_steps(dout, batch, 0, i, rows, head, column, V, BLOCK_V).to(tl.float32)
        value = pairwise_sum(result * incoming)
    if dlse.pointer is not None:
        value -= load_row(dlse, batch, 0, i, rows, head)
    store_row(delta, value, batch, 0, i, rows, head)
    logarithm = load_row(lse, batch, 0, i, rows, head)
    store_row(base, tl.where(logarithm == float("-inf"), 0.0, logarithm * UNIT), batch, 0, i, rows, head)


@triton.jit
def add_keys(
    totals, q_tile, dout_tile, k, v, own, bias, slopes, seed_ptr, place, counts, heads, at, start, border,
    SIDES: tl.constexpr, FACTORS: tl.constexpr, DROPPED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, DESCRIBED: tl.constexpr, BIAS: tl.constexpr, STEEP: tl.constexpr,
):  # fmt: skip
    """dq without its factor, and the gradient of a slope by queries, with one more tile of keys."""
    total, steep = totals
    batch, _number, first_q, first_k, origin = place
    head, group, row = heads
    base, delta = own
    k_tile = load_tile(k, batch, first_k, start, counts[1], group, COLUMNS[0], COLUMNS[2], BLOCK_K, DESCRIBED, origin)
    v_tile = load_tile(v, batch, first_k, start, counts[1], group, COLUMNS[1], COLUMNS[3], BLOCK_K, DESCRIBED, origin)
    products = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
    i, j = at + tl.arange(0, BLOCK_Q), start + tl.arange(0, BLOCK_K)
    x, bounded = scores_of(
        products, bias, slopes, place, head, i[:, None], j[None, :], (at, start), counts, border, SIDES, FACTORS,
        BLOCK_Q, BLOCK_K, BIAS,
    )  # fmt: skip
    p = probabilities(x, base[:, None], FACTORS)
    keep = None
    if DROPPED > 0:
        keep = kept(seed_ptr, i, row, first_q, start, DROPPED, BLOCK_Q, BLOCK_K)
    dp = dropped(tl.dot(dout_tile, tl.trans(v_tile), input_precision="ieee"), keep, DROPPED)
    ds = p * (dp - delta[:, None])
    if STEEP:
        distance = tl.abs(j[None, :] - i[:, None] - (counts[1] - counts[0]))
        steep -= tl.sum(ds * distance.to(tl.float32), axis=1)
    if FACTORS[2] is not None:
        ds *= 1.0 - bounded * bounded
    return tl.dot(ds.to(k_tile.dtype), k_tile, total, input_precision="ieee"), steep


@triton.jit
def add_up_queries(
    q, k, v, bias, slopes, seed_ptr, cu_q_ptr, base, dout, delta, dq, dslopes_ptr, sizes, own, SIDES: tl.constexpr,
    FACTORS: tl.constexpr, SCALE: tl.constexpr, DROPPED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, DESCRIBED: tl.constexpr, BIAS: tl.constexpr, SEGMENTED: tl.constexpr,
):  # fmt: skip
    """dq of a tile of queries, `own`, and its part of the gradient of slopes."""
    BLOCK_D: tl.constexpr = COLUMNS[2]
    batch, head, tile, number, first_q, queries, first_k, keys, at = own
    origin = batch * sizes[0] if SEGMENTED else 0
    i = at + tl.arange(0, BLOCK_Q)
    column = tl.arange(0, COLUMNS[2])
    q_tile = load_steps(q, batch, first_q, i, queries, head, column, COLUMNS[0], COLUMNS[2])
    dout_tile = load_steps(dout, batch, first_q, i, queries, head, tl.arange(0, COLUMNS[3]), COLUMNS[1], COLUMNS[3])
    own_base = load_row(base, batch, first_q, i, queries, head)
    own_delta = load_row(delta, batch, first_q, i, queries, head)
    total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    steep = tl.zeros([BLOCK_Q], tl.float32)
    low, first, last, high = seen(at, queries, keys, SIDES[0], SIDES[1], BLOCK_Q, BLOCK_K)
    for start in tl.range(low, high, BLOCK_K):
        total, steep = add_keys(
            (total, steep), q_tile, dout_tile, k, v, (own_base, own_delta), bias, slopes, seed_ptr,
            (batch, number, first_q, first_k, origin), (queries, keys),
            (head, head // sizes[3], batch * sizes[2] + head), at, start, (start < first) | (start >= last), SIDES,
            FACTORS, DROPPED, COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, dslopes_ptr is not None,
        )  # fmt: skip
    if dslopes_ptr is not None:
        own_tile = tile
        if not SEGMENTED:
            own_tile = batch * tiles_of(cu_q_ptr, sizes[0], sizes[4], BLOCK_Q) + tile
        tl.store(dslopes_ptr + own_tile * sizes[2] + head, tl.sum(tl.where(i < queries, steep, 0.0), axis=0))
    store_steps(dq, total * SCALE, batch, first_q, i, queries, head, column, COLUMNS[0])


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
    base,
    dout,
    delta,
    dq,
    dslopes_ptr,
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
    SEGMENTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dq of a tile of queries; dslopes (batch, tiles, heads): parts of the gradient of slopes.

    DESCRIBED: k and v are tensor descriptors. SEGMENTED: cu_q_ptr and cu_k_ptr are `segments`' runs, and dslopes is
    (1, tiles, heads).
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    if SEGMENTED:
        head, first, tiles, programs = own_tiles(cu_q_ptr, sizes[2], BLOCK_Q)
        for n in tl.range(first, tiles, programs, disable_licm=True):
            add_up_queries(
                q, k, v, bias, slopes, seed_ptr, cu_q_ptr, base, dout, delta, dq, dslopes_ptr, sizes,
                run_of_queries(cu_q_ptr, tiles - 1 - n, head, sizes, BLOCK_Q), SIDES, FACTORS, SCALE, DROPPED, COLUMNS,
                BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, SEGMENTED,
            )  # fmt: skip
    else:
        own = tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, BLOCK_Q, BIAS)
        head, tile = own[1], own[2]
        clear_gaps(dq, cu_q_ptr, sizes[0], sizes[4], tile, head, COLUMNS[0], COLUMNS[2], BLOCK_Q)
        add_up_queries(
            q, k, v, bias, slopes, seed_ptr, cu_q_ptr, base, dout, delta, dq, dslopes_ptr, sizes, own, SIDES, FACTORS,
            SCALE, DROPPED, COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, SEGMENTED,
        )  # fmt: skip


@triton.jit
def add_queries(
    totals, k_tile, v_tile, q, dout, base, delta, bias, slopes, seed_ptr, place, counts, heads, at, start, border,
    SIDES: tl.constexpr, FACTORS: tl.constexpr, DROPPED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, DESCRIBED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """dk without its factor, and dv, with one more tile of queries of a head; the gradient at its products.

    Pairs are (keys, queries) here.
    """
    total_k, total_v = totals
    batch, _number, first_q, _first_k, origin = place
    head, row = heads
    i, j = start + tl.arange(0, BLOCK_Q), at + tl.arange(0, BLOCK_K)
    q_tile = load_tile(q, batch, first_q, start, counts[0], head, COLUMNS[0], COLUMNS[2], BLOCK_Q, DESCRIBED, origin)
    dout_tile = load_tile(
        dout, batch, first_q, start, counts[0], head, COLUMNS[1], COLUMNS[3], BLOCK_Q, DESCRIBED, origin
    )
    own_base = load_row(base, batch, first_q, i, counts[0], head)
    products = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
    x, bounded = scores_of(
        products, bias, slopes, place, head, i[None, :], j[:, None], (start, at), counts, border, SIDES, FACTORS,
        BLOCK_Q, BLOCK_K, BIAS,
    )  # fmt: skip
    p = probabilities(x, own_base[None, :], FACTORS)
    keep = None
    if DROPPED > 0:
        keep = tl.trans(kept(seed_ptr, i, row, first_q, at, DROPPED, BLOCK_Q, BLOCK_K))
    total_v = tl.dot(dropped(p, keep, DROPPED).to(dout_tile.dtype), dout_tile, total_v, input_precision="ieee")
    own_delta = load_row(delta, batch, first_q, i, counts[0], head)
    dp = dropped(tl.dot(v_tile, tl.trans(dout_tile), input_precision="ieee"), keep, DROPPED)
    ds = p * (dp - own_delta[None, :])
    if FACTORS[2] is not None:
        ds *= 1.0 - bounded * bounded
    ds = ds.to(q_tile.dtype)
    return tl.dot(ds, q_tile, total_k, input_precision="ieee"), total_v, ds


@triton.jit
def add_up_keys(
    q, k, v, bias, slopes, seed_ptr, base, dout, delta, dk, dv, sizes, own, SIDES: tl.constexpr, FACTORS: tl.constexpr,
    SCALE: tl.constexpr, DROPPED: tl.constexpr, SHARE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, DESCRIBED: tl.constexpr, BIAS: tl.constexpr, SEGMENTED: tl.constexpr, sums,
    IN_PTX: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys, `own`; and, unless `sums` is None, its part of dq, see `add_in_turn`."""
    BLOCK_D: tl.constexpr = COLUMNS[2]
    BLOCK_V: tl.constexpr = COLUMNS[3]
    batch, group, _tile, number, first_q, queries, first_k, keys, at = own
    origin = batch * sizes[0] if SEGMENTED else 0
    j = at + tl.arange(0, BLOCK_K)
    column_d, column_v = tl.arange(0, COLUMNS[2]), tl.arange(0, COLUMNS[3])
    k_tile = load_steps(k, batch, first_k, j, keys, group, column_d, COLUMNS[0], COLUMNS[2])
    v_tile = load_steps(v, batch, first_k, j, keys, group, column_v, COLUMNS[1], COLUMNS[3])
    total_k = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    total_v = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    low, first, last, high = seen(at, keys, queries, SIDES[1], SIDES[0], BLOCK_K, BLOCK_Q)
    stop, tiles = high, 0
    if SHARE > 1:
        tiles = tl.cdiv(tl.maximum(high - low, 0), BLOCK_Q)  # that each head of the group has
        stop = low + tiles * SHARE * BLOCK_Q
    for step in tl.range(low, stop, BLOCK_Q):
        head, start = group, step
        if SHARE > 1:
            walked = (step - low) // BLOCK_Q
            head, start = group * SHARE + walked // tiles, low + walked % tiles * BLOCK_Q
        total_k, total_v, ds = add_queries(
            (total_k, total_v), k_tile, v_tile, q, dout, base, delta, bias, slopes, seed_ptr,
            (batch, number, first_q, first_k, origin), (queries, keys), (head, batch * sizes[2] + head), at, start,
            (start < first) | (start >= last), SIDES, FACTORS, DROPPED, COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS,
        )  # fmt: skip
        if sums is not None:
            part = tl.dot(tl.trans(ds), k_tile, input_precision="ieee")
            add_in_turn(
                sums, part, batch, head, first_q, queries, keys, at, start, sizes, SIDES, COLUMNS, BLOCK_Q, BLOCK_K,
                IN_PTX,
            )  # fmt: skip
    store_steps(dk, total_k * SCALE, batch, first_k, j, keys, group, column_d, COLUMNS[0])
    store_steps(dv, total_v, batch, first_k, j, keys, group, column_v, COLUMNS[1])


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
    base,
    dout,
    delta,
    dk,
    dv,
    sizes,
    SIDES: tl.constexpr,
    FACTORS: tl.constexpr,
    SCALE: tl.constexpr,
    DROPPED: tl.constexpr,
    SHARE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BIAS: tl.constexpr,
    SEGMENTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dk and dv of a tile of keys: sums over the heads of its group, and over the tiles of queries that see it.

    DESCRIBED: q and dout are tensor descriptors. SEGMENTED: cu_q_ptr and cu_k_ptr are `segments`' runs.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    if SEGMENTED:
        group, first, tiles, programs = own_tiles(cu_k_ptr, sizes[2] // SHARE, BLOCK_K)
        for n in tl.range(first, tiles, programs, disable_licm=True):
            add_up_keys(
                q, k, v, bias, slopes, seed_ptr, base, dout, delta, dk, dv, sizes,
                run_of_keys(cu_k_ptr, n, group, sizes, BLOCK_K, OVERLAP), SIDES, FACTORS, SCALE, DROPPED, SHARE,
                COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, SEGMENTED, None, False,
            )  # fmt: skip
    else:
        own = tile_of_keys(cu_q_ptr, cu_k_ptr, sizes, BLOCK_K, BIAS)
        group, tile = own[1], own[2]
        clear_gaps(dk, cu_k_ptr, sizes[1], sizes[4], tile, group, COLUMNS[0], COLUMNS[2], BLOCK_K)
        clear_gaps(dv, cu_k_ptr, sizes[1], sizes[4], tile, group, COLUMNS[1], COLUMNS[3], BLOCK_K)
        add_up_keys(
            q, k, v, bias, slopes, seed_ptr, base, dout, delta, dk, dv, sizes, own, SIDES, FACTORS, SCALE, DROPPED,
            SHARE, COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, SEGMENTED, None, False,
        )  # fmt: skip
