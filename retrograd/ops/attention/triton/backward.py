"""Attention, backward in two loops: `keys_backward` owns a tile of keys, `queries_backward` a tile of queries."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, pairwise_sum, wait_for_previous

from ..device import load_row, load_steps, store_row, store_steps
from .pairs import (
    clear_gaps,
    dropped,
    kept,
    load_keys,
    load_queries,
    probabilities,
    scores_of,
    tile_of_keys,
    tile_of_queries,
    tiles_of,
    tiles_of_keys,
    tiles_of_queries,
)
from .segments import own_tiles, run_of_keys, run_of_queries
from .tuples import Incoming, Inputs, Queries
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
    totals,
    own,
    inputs,
    sequence,
    head,
    sizes,
    at,
    start,
    border,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    STEEP: tl.constexpr,
):
    """Add a tile of keys to dq without its factor and, with STEEP, to the gradient of a slope by queries."""
    total, steep = totals
    group, row = head // sizes.share, sequence.batch * sizes.heads + head
    k_tile = load_keys(inputs.k, sequence, start, group, TILES.D, TILES.BLOCK_D, TILES)
    v_tile = load_keys(inputs.v, sequence, start, group, TILES.V, TILES.BLOCK_V, TILES)
    products = tl.dot(own.q, tl.trans(k_tile), input_precision="ieee")
    i, j = at + tl.arange(0, TILES.queries), start + tl.arange(0, TILES.keys)
    x, bounded = scores_of(products, inputs, sequence, head, i[:, None], j[None, :], at, start, border, SCORES, TILES)
    p = probabilities(x, own.base[:, None], SCORES)
    keep = None
    if SCORES.dropped > 0:
        keep = kept(inputs.seed_ptr, i, row, sequence.first_q, start, SCORES.dropped, TILES.queries, TILES.keys)
    dp = dropped(tl.dot(own.dout, tl.trans(v_tile), input_precision="ieee"), keep, SCORES.dropped)
    ds = p * (dp - own.delta[:, None])
    if STEEP:
        distance = tl.abs(j[None, :] - i[:, None] - (sequence.keys - sequence.queries))
        steep -= tl.sum(ds * distance.to(tl.float32), axis=1)
    if SCORES.softcap is not None:
        ds *= 1.0 - bounded * bounded
    return tl.dot(ds.to(k_tile.dtype), k_tile, total, input_precision="ieee"), steep


@triton.jit
def add_up_queries(
    inputs,
    incoming,
    cu_q_ptr,
    dq,
    dslopes_ptr,
    sizes,
    work,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    SEGMENTED: tl.constexpr,
):
    """dq of a tile of queries, and its part of the gradient of slopes."""
    sequence, head, at = work.sequence, work.head, work.at
    batch, first_q, queries = sequence.batch, sequence.first_q, sequence.queries
    i = at + tl.arange(0, TILES.queries)
    column_d = tl.arange(0, TILES.BLOCK_D)
    q_tile = load_steps(inputs.q, batch, first_q, i, queries, head, column_d, TILES.D, TILES.BLOCK_D)
    column_v = tl.arange(0, TILES.BLOCK_V)
    dout_tile = load_steps(incoming.dout, batch, first_q, i, queries, head, column_v, TILES.V, TILES.BLOCK_V)
    base = load_row(incoming.base, batch, first_q, i, queries, head)
    own = Queries(q_tile, dout_tile, base, load_row(incoming.delta, batch, first_q, i, queries, head))
    total = tl.full([TILES.queries, TILES.BLOCK_D], 0.0, tl.float32)
    steep = tl.full([TILES.queries], 0.0, tl.float32)
    low, first, last, high = tiles_of_keys(sequence, at, SCORES, TILES)
    STEEP: tl.constexpr = dslopes_ptr is not None
    for start in tl.range(low, high, TILES.keys):
        border = (start < first) | (start >= last)
        total, steep = add_keys(
            (total, steep), own, inputs, sequence, head, sizes, at, start, border, SCORES, TILES, STEEP
        )
    if STEEP:
        tile = work.tile
        if not SEGMENTED:
            tile = batch * tiles_of(cu_q_ptr, sizes.queries, sizes.sequences, TILES.queries) + tile
        tl.store(dslopes_ptr + tile * sizes.heads + head, tl.sum(tl.where(i < queries, steep, 0.0), axis=0))
    store_steps(dq, total * SCORES.scale, batch, first_q, i, queries, head, column_d, TILES.D)


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
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    SEGMENTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dq of a tile of queries; dslopes (batch, tiles, heads): parts of the gradient of slopes.

    TILES.described: k and v are tensor descriptors. SEGMENTED: cu_q_ptr and cu_k_ptr are `segments`' runs, and dslopes
    is (1, tiles, heads).
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    inputs, incoming = Inputs(q, k, v, bias, slopes, seed_ptr), Incoming(base, dout, delta)
    if SEGMENTED:
        head, first, tiles, programs = own_tiles(cu_q_ptr, sizes.heads, TILES.queries)
        for n in tl.range(first, tiles, programs, disable_licm=True):
            work = run_of_queries(cu_q_ptr, tiles - 1 - n, head, sizes, TILES.queries)
            add_up_queries(inputs, incoming, cu_q_ptr, dq, dslopes_ptr, sizes, work, SCORES, TILES, SEGMENTED)
    else:
        work = tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, SCORES, TILES)
        T, sequences = sizes.queries, sizes.sequences
        clear_gaps(dq, cu_q_ptr, T, sequences, work.tile, work.head, TILES.D, TILES.BLOCK_D, TILES.queries)
        add_up_queries(inputs, incoming, cu_q_ptr, dq, dslopes_ptr, sizes, work, SCORES, TILES, SEGMENTED)


@triton.jit
def add_queries(
    totals,
    k_tile,
    v_tile,
    inputs,
    incoming,
    sequence,
    head,
    row,
    at,
    start,
    border,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
):
    """Add a tile of queries of a head to dk without its factor, and to dv; the gradient at the tile's products, too.

    Pairs are (keys, queries) here.
    """
    total_k, total_v = totals
    batch, first_q, queries = sequence.batch, sequence.first_q, sequence.queries
    i, j = start + tl.arange(0, TILES.queries), at + tl.arange(0, TILES.keys)
    q_tile = load_queries(inputs.q, sequence, start, head, TILES.D, TILES.BLOCK_D, TILES)
    dout_tile = load_queries(incoming.dout, sequence, start, head, TILES.V, TILES.BLOCK_V, TILES)
    base = load_row(incoming.base, batch, first_q, i, queries, head)
    products = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
    x, bounded = scores_of(products, inputs, sequence, head, i[None, :], j[:, None], start, at, border, SCORES, TILES)
    p = probabilities(x, base[None, :], SCORES)
    keep = None
    if SCORES.dropped > 0:
        keep = tl.trans(kept(inputs.seed_ptr, i, row, first_q, at, SCORES.dropped, TILES.queries, TILES.keys))
    weights = dropped(p, keep, SCORES.dropped).to(dout_tile.dtype)
    total_v = tl.dot(weights, dout_tile, total_v, input_precision="ieee")
    delta = load_row(incoming.delta, batch, first_q, i, queries, head)
    dp = dropped(tl.dot(v_tile, tl.trans(dout_tile), input_precision="ieee"), keep, SCORES.dropped)
    ds = p * (dp - delta[None, :])
    if SCORES.softcap is not None:
        ds *= 1.0 - bounded * bounded
    ds = ds.to(q_tile.dtype)
    return tl.dot(ds, q_tile, total_k, input_precision="ieee"), total_v, ds


@triton.jit
def add_up_keys(
    inputs,
    incoming,
    dk,
    dv,
    sizes,
    work,
    turns,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    IN_PTX: tl.constexpr,
):
    """dk and dv of a tile of keys; and, unless `turns` is None, its part of dq, see `add_in_turn`."""
    sequence, group, at = work.sequence, work.head, work.at
    batch, first_k, keys = sequence.batch, sequence.first_k, sequence.keys
    j = at + tl.arange(0, TILES.keys)
    column_d, column_v = tl.arange(0, TILES.BLOCK_D), tl.arange(0, TILES.BLOCK_V)
    k_tile = load_steps(inputs.k, batch, first_k, j, keys, group, column_d, TILES.D, TILES.BLOCK_D)
    v_tile = load_steps(inputs.v, batch, first_k, j, keys, group, column_v, TILES.V, TILES.BLOCK_V)
    total_k = tl.full([TILES.keys, TILES.BLOCK_D], 0.0, tl.float32)
    total_v = tl.full([TILES.keys, TILES.BLOCK_V], 0.0, tl.float32)
    low, first, last, high = tiles_of_queries(sequence, at, SCORES, TILES)
    stop, tiles = high, 0
    if TILES.heads > 1:
        tiles = tl.cdiv(tl.maximum(high - low, 0), TILES.queries)  # that each head of the group has
        stop = low + tiles * TILES.heads * TILES.queries
    for step in tl.range(low, stop, TILES.queries):
        head, start = group, step
        if TILES.heads > 1:
            walked = (step - low) // TILES.queries
            head, start = group * TILES.heads + walked // tiles, low + walked % tiles * TILES.queries
        row = batch * sizes.heads + head
        border = (start < first) | (start >= last)
        total_k, total_v, ds = add_queries(
            (total_k, total_v), k_tile, v_tile, inputs, incoming, sequence, head, row, at, start, border, SCORES, TILES
        )
        if turns is not None:
            part = tl.dot(tl.trans(ds), k_tile, input_precision="ieee")
            add_in_turn(turns, part, sequence, head, sizes, at, start, SCORES, TILES, IN_PTX)
    store_steps(dk, total_k * SCORES.scale, batch, first_k, j, keys, group, column_d, TILES.D)
    store_steps(dv, total_v, batch, first_k, j, keys, group, column_v, TILES.V)


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
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    SEGMENTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dk and dv of a tile of keys: sums over the heads of its group, and over the tiles of queries that see it.

    TILES.described: q and dout are tensor descriptors. SEGMENTED: cu_q_ptr and cu_k_ptr are `segments`' runs.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    inputs, incoming = Inputs(q, k, v, bias, slopes, seed_ptr), Incoming(base, dout, delta)
    if SEGMENTED:
        group, first, tiles, programs = own_tiles(cu_k_ptr, sizes.heads // TILES.heads, TILES.keys)
        for n in tl.range(first, tiles, programs, disable_licm=True):
            work = run_of_keys(cu_k_ptr, n, group, sizes, TILES.keys, OVERLAP)
            add_up_keys(inputs, incoming, dk, dv, sizes, work, None, SCORES, TILES, False)
    else:
        work = tile_of_keys(cu_q_ptr, cu_k_ptr, sizes, SCORES, TILES)
        T, sequences = sizes.keys, sizes.sequences
        clear_gaps(dk, cu_k_ptr, T, sequences, work.tile, work.head, TILES.D, TILES.BLOCK_D, TILES.keys)
        clear_gaps(dv, cu_k_ptr, T, sequences, work.tile, work.head, TILES.V, TILES.BLOCK_V, TILES.keys)
        add_up_keys(inputs, incoming, dk, dv, sizes, work, None, SCORES, TILES, False)
