"""Attention, backward, on Hopper, heads wider than 128: dq, in a walk over the keys. Symbols: ../README.md.

A program takes tiles of queries, one after the other, and walks over their blocks of keys as the forward pass does. Its
warps are of two kinds:
    fetch          one warp, the producer: copies q and dout, and block after block of k and v, by TMA
    differentiate  two groups, the consumers, each with half of the queries: two products, ds in registers, and a
                   product that adds to dq, of one half of a block's keys after the other
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import tma_load, tma_store
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, release, ring_of, stage_of, wait_full

from .backward_fused import FEW_REGISTERS
from .forward import fetch_block
from .schedule import at_step, blocks_seen, tile_of_queries, tiles_of_head, unmasked
from .scores import scores, through_bound
from .tickets import QueryTicket, draw, has_tile, query_ticket, ring_of_tickets, write
from .wgmma import (
    WARPS,
    add_products,
    allocate,
    halves,
    matrix,
    no_sums,
    of_products,
    over_columns,
    pieces,
    store_sums,
    wait_for_sums,
)


class Arrays(NamedTuple):
    """The tensor descriptors of what is copied to shared memory."""

    q: Any
    k: Any
    v: Any
    dout: Any


class Rings(NamedTuple):
    """Their blocks. Each of two groups has a stage of its own for q, with which dout comes."""

    q: Ring
    k: Ring
    v: Ring
    dout: Any


@gluon.jit
def fetch(arrays, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS: gl.constexpr):
    """The producer: copies what the program's tiles need, and draws tickets for these."""
    WINDOW: gl.constexpr = OPTIONS.window
    TILE: gl.constexpr = 2 * OPTIONS.queries
    q, dout = arrays.q, arrays.dout
    n, number = 0, 0
    while t < tiles * sizes.rows:
        next_t = draw(counter_ptr)
        tile = tile_of_queries(t, tiles, tile_list_ptr, sizes, TILE)
        batch, head, first_q, queries, first_k, keys, at, outside = tile
        if queries > 0:
            low, high = blocks_seen(at, queries, keys, WINDOW, TILE, OPTIONS.keys)
            write(tickets, number, QueryTicket(1, batch, head, first_q, queries, first_k, keys, at, outside, low, high))
            for w in gl.static_range(2):
                full = rings.q.full.index(w)
                where = at_step(q, batch, first_q, at + w * OPTIONS.queries, queries, head)
                mbarrier.wait(rings.q.empty.index(w), (number & 1) ^ 1)
                mbarrier.expect(full, q.block_type.nbytes + dout.block_type.nbytes)
                tma_load(q, where, full, rings.q.blocks.index(w))
                tma_load(dout, where, full, rings.dout.index(w))
            for i in range(high - low):
                where = at_step(arrays.k, batch, first_k, (high - 1 - i) * OPTIONS.keys, keys, head // sizes.share)
                fetch_block(arrays.k, where, rings.k, n)
                fetch_block(arrays.v, where, rings.v, n)
                n += 1
            number += 1
        t = next_t
    write(tickets, number, (0,))


@gluon.jit
def zeros_outside(total, live):
    """Sums, zeros for queries that see no key."""
    live = gl.convert_layout(live, gl.SliceLayout(1, total.type.layout), assert_trivial=True)
    return gl.where(live[:, None], total, 0.0)


@gluon.jit
def probabilities_of(s, i, block, border, queries, keys, base, OPTIONS: gl.constexpr):
    """p of queries i and a block of as many keys as s has."""
    s = scores(s, i, block, border, queries, keys, OPTIONS)
    return gl.exp2(gl.fma(s, OPTIONS.factors.exponent, base[:, None]))


@gluon.jit
def differences_of(p, dp, base, delta, OPTIONS: gl.constexpr):
    """ds of the same pairs; base and delta of queries."""
    ds = p * (dp - delta[:, None])
    if OPTIONS.factors.inside is not None:
        ds = through_bound(ds, p, base[:, None], OPTIONS)
    return ds


@gluon.jit
def differentiate(W: gl.constexpr, dq, base_ptr, delta_ptr, rings, tickets, heads, pitch, OPTIONS: gl.constexpr):
    """A consumer: dq of the queries of group W in the program's tiles. Pairs are (queries, keys)."""
    WINDOW: gl.constexpr = OPTIONS.window
    ROWS: gl.constexpr = OPTIONS.queries
    KEYS: gl.constexpr = OPTIONS.keys
    TYPE: gl.constexpr = rings.q.blocks.dtype
    HALF: gl.constexpr = KEYS // 2
    SIZE: gl.constexpr = OPTIONS.size
    ROW: gl.constexpr = gl.SliceLayout(1, of_products(HALF))
    none = gl.zeros([ROWS, KEYS], gl.float32, of_products(KEYS))
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        tile = query_ticket(tickets, number)
        release(tickets, number)
        queries, keys = tile.queries, tile.keys
        own = tile.at + W * ROWS
        bottom, top = unmasked(own, queries, keys, tile.low, tile.high, WINDOW, ROWS, KEYS)
        i = own + gl.arange(0, ROWS, ROW)
        numbers = gl.cast(tile.batch * heads + tile.head, gl.int64) * pitch + tile.first_q
        base = gl.load(base_ptr + numbers + i, mask=i < queries, other=float("-inf"))
        delta = gl.load(delta_ptr + numbers + i, mask=i < queries, other=0.0)
        total, rest = no_sums(ROWS, SIZE)
        mbarrier.wait(rings.q.full.index(W), number & 1)
        for step in range(tile.high - tile.low):
            block = tile.high - 1 - step
            border = (block >= top) | (block < bottom)
            k_stage, v_stage = stage_of(n, OPTIONS.k_stages), stage_of(n, OPTIONS.v_stages)
            k = matrix(rings.k.blocks.index(k_stage))
            q_stage = forget(gl.to_tensor(W))
            q, dout = matrix(rings.q.blocks.index(q_stage)), matrix(rings.dout.index(q_stage))
            wait_full(rings.k, n)
            s = over_columns(q, k, none, OPTIONS.size)
            wait_full(rings.v, n)
            dp = over_columns(dout, matrix(rings.v.blocks.index(v_stage)), none, OPTIONS.value_size)
            s0, s1 = halves(warpgroup_mma_wait(pieces(OPTIONS.value_size), deps=[s]))
            p = probabilities_of(s0, i, 2 * block, border, queries, keys, base, OPTIONS)
            dp = warpgroup_mma_wait(0, deps=[dp])
            release(rings.v, n)
            dp0, dp1 = halves(dp)
            ds = differences_of(p, dp0, base, delta, OPTIONS).to(TYPE)
            # These products run beside the exponentials of the other half.
            total, rest = add_products(ds, k.slice(0, HALF), total, rest, SIZE)
            p = probabilities_of(s1, i, 2 * block + 1, border, queries, keys, base, OPTIONS)
            ds = differences_of(p, dp1, base, delta, OPTIONS).to(TYPE)
            total, rest = add_products(ds, k.slice(HALF, HALF), total, rest, SIZE)
            total, rest = wait_for_sums(total, rest, SIZE)
            release(rings.k, n)
            n += 1
        # No product reads q any more: dq is staged in its block.
        live = base != float("-inf")
        total, rest = zeros_outside(total, live), zeros_outside(rest, live)
        store_sums(total, rest, SIZE, OPTIONS.scale, matrix(rings.q.blocks.index(W)))
        fence_async_shared()
        tma_store(dq, at_step(dq, tile.batch, tile.first_q, own, queries, tile.head), rings.q.blocks.index(W))
        tma.store_wait(0)
        mbarrier.arrive(rings.q.empty.index(W))
        number += 1
        wait_full(tickets, number)


@gluon.jit(do_not_specialize=["sizes", "pitch"])
def backward_dq(
    q,
    k,
    v,
    dout,
    base_ptr,
    delta_ptr,
    tile_list_ptr,
    runs_ptr,
    counter_ptr,
    dq,
    sizes,
    pitch,
    OPTIONS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dq. Tensor descriptors: q, k, v, dout, dq. tile_list, runs, counter: as `forward`. base, delta: as `deltas` has
    stored them. pitch: the distance of their rows.
    """
    K_STAGES: gl.constexpr = OPTIONS.k_stages
    V_STAGES: gl.constexpr = OPTIONS.v_stages
    q_blocks = allocate(q, 2)
    dout_blocks = allocate(dout, 2)
    k_blocks = allocate(k, K_STAGES)
    v_blocks = allocate(v, V_STAGES)
    rings = Rings(ring_of(q_blocks, 2, 1), ring_of(k_blocks, K_STAGES, 2), ring_of(v_blocks, V_STAGES, 2), dout_blocks)
    tickets = ring_of_tickets(2)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, 2 * OPTIONS.queries)
    gl.warp_specialize(
        [
            (differentiate, (0, dq, base_ptr, delta_ptr, rings, tickets, sizes.heads, pitch, OPTIONS)),
            (differentiate, (1, dq, base_ptr, delta_ptr, rings, tickets, sizes.heads, pitch, OPTIONS)),
            (fetch, (arrays, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS)),
        ],
        [WARPS, 1],
        [OPTIONS.registers, FEW_REGISTERS],
    )
