"""Attention, forward, on Hopper: products on the tensor cores beside the softmax of others. Symbols: ../README.md.

A program takes tiles of queries, one after the other, and walks over their blocks of keys, from the last one that
any of its queries sees to the first. Its warps are of two kinds:
    fetch   one warp, the producer: copies q, and block after block of k and v, by TMA
    attend  two or three groups, the consumers, each with some of the queries: while the tensor cores compute the scores
            of a block and add the values of the block before for one group, another one has its softmax
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import tma_load, tma_store
from retrograd.core.kernels.numerics import LOG2E, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import (
    Ring,
    acquire,
    acquire_from_warps,
    barriers,
    parity_of,
    release,
    ring_of,
    stage_of,
    wait_full,
)

from ..arrays import Pairs
from ..device import LN2
from .schedule import (
    at_step,
    blocks_seen,
    first_tile,
    rows_side_by_side,
    tile_after,
    tile_of_queries,
    tiles_of_head,
    unmasked,
)
from .scores import bias_of, read_bias, scores
from .softmax import K_FREE, V_FREE, Sums, add_block, part_sums, release_block, softmax
from .tickets import QueryTicket, has_tile, query_ticket, ring_of_tickets, write
from .wgmma import (
    WARPS,
    Panels,
    allocate,
    allocate_panels,
    matrix,
    of_products,
    over_panels,
    panels_of,
    shape_of_blocks,
)

FETCH_REGISTERS = gl.constexpr(40)
FEWER_REGISTERS = gl.constexpr(24)  # beside three groups


class Rings(NamedTuple):
    """The blocks of the arrays that are copied to shared memory, those of q and k in panels of columns; each group of
    warps has stages of its own for q.

    bias: for each group the blocks of its queries, which come and go with those of k; None without a bias.
    """

    q: Ring
    k: Ring
    v: Ring
    bias: Any


@gluon.jit
def acquire_block(ring, n, FREE: gl.constexpr, OPTIONS: gl.constexpr):
    """Wait until there is room for block n of k or v; returns its stage."""
    if OPTIONS.by_warps:
        return acquire_from_warps(ring, n, FREE, OPTIONS.groups * (32 * WARPS) + 32)
    else:
        return acquire(ring, n)


@gluon.jit
def load_block(array, where, ring, stage):
    """Copy a block of a ring."""
    mbarrier.expect(ring.full.index(stage), array.block_type.nbytes)
    tma_load(array, where, ring.full.index(stage), ring.blocks.index(stage))


@gluon.jit
def fetch_block(array, where, ring, n):
    """Copy block n of a ring, when there is room for it."""
    load_block(array, where, ring, acquire(ring, n))


@gluon.jit
def load_k(k, batch, first_k, at, keys, group, ring, stage, PANELS: gl.constexpr):
    """Copy a block of k, in one piece or panel by panel."""
    if PANELS == 1:
        load_block(k, at_step(k, batch, first_k, at, keys, group), ring, stage)
    else:
        WIDTH: gl.constexpr = k.block_shape[len(k.block_shape) - 1]
        mbarrier.expect(ring.full.index(stage), PANELS * k.block_type.nbytes)
        for panel in gl.static_range(PANELS):
            where = at_step(k, batch, first_k, at, keys, group, panel * WIDTH)
            tma_load(k, where, ring.full.index(stage), ring.blocks[panel].index(stage))


@gluon.jit
def load_bias(bias, batch, head, at, j, rings, stage, OPTIONS: gl.constexpr):
    """Copy the bias of the tile from query `at` on and a block of keys from j on; an axis of size 1 has one block."""
    QUERIES: gl.constexpr = bias.block_shape[2]
    GROUPS: gl.constexpr = OPTIONS.groups
    full = rings.k.full.index(stage)
    mbarrier.expect(full, GROUPS * bias.block_type.nbytes)
    for w in gl.static_range(GROUPS):
        i = at + w * QUERIES if QUERIES > 1 else 0
        where = [gl.minimum(batch, bias.shape[0] - 1), gl.minimum(head, bias.shape[1] - 1), i, j]
        tma_load(bias, where, full, rings.bias[w].index(stage))


@gluon.constexpr_function
def in_place_of(blocks, array):
    """How many blocks of an array fit into the memory of others with as many steps."""
    return blocks.shape[0] * blocks.shape[-1] // array.block_shape[-1]


@gluon.constexpr_function
def room_for(panels):
    """The slots of a block of q in panels: a power of two, so that blocks of out fit into them."""
    return 1 if panels == 1 else 4


@gluon.jit
def q_panels(blocks, stage, PANELS: gl.constexpr):
    """A block of q as (queries, columns), or its panels."""
    first = stage * room_for(PANELS)
    if PANELS == 1:
        return matrix(blocks.index(first))
    else:
        return Panels(matrix(blocks.index(first)), matrix(blocks.index(first + 1)), matrix(blocks.index(first + 2)))


@gluon.jit
def row_of(tile, runs_ptr, sizes):
    """The row of the batch that a tile is in, and the first step of its sequence there."""
    batch, first_q = tile.batch, tile.first_q
    if runs_ptr is not None:  # first_q is a step of all rows
        batch = first_q // sizes.queries
        first_q -= batch * sizes.queries
    return batch, first_q


@gluon.jit
def bias_of_sequence(bias, tile, runs_ptr, sizes):
    """A bias of all pairs from the first query and key of a tile's sequence on, of its head."""
    batch, first_q = row_of(tile, runs_ptr, sizes)
    first_k = tile.first_k
    if runs_ptr is not None:
        first_k -= batch * sizes.keys
    own = bias.pointer + gl.cast(batch, gl.int64) * bias.batch + gl.cast(tile.head, gl.int64) * bias.head
    own += gl.cast(first_q, gl.int64) * bias.query + gl.cast(first_k, gl.int64) * bias.key
    return Pairs(own, bias.batch, bias.head, bias.query, bias.key)


@gluon.jit
def fetch(q, k, v, bias, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS: gl.constexpr):
    """The producer: copies what the program's tiles need, and draws tickets for these."""
    WINDOW: gl.constexpr = OPTIONS.window
    GROUPS: gl.constexpr = OPTIONS.groups
    PANELS: gl.constexpr = OPTIONS.panels
    TILE: gl.constexpr = OPTIONS.groups * OPTIONS.queries
    WIDTH: gl.constexpr = q.block_shape[len(q.block_shape) - 1]
    n, number = 0, 0
    while t < tiles * sizes.rows:
        next_t = tile_after(t, counter_ptr, sizes.drawn)
        tile = tile_of_queries(t, tiles, tile_list_ptr, sizes, TILE)
        batch, head, first_q, queries, first_k, keys, at, outside = tile
        if rings.bias is not None:
            batch, head = rows_side_by_side(batch, head, sizes)
        if queries > 0:
            low, high = blocks_seen(at, queries, keys, WINDOW, TILE, OPTIONS.keys)
            write(tickets, number, QueryTicket(1, batch, head, first_q, queries, first_k, keys, at, outside, low, high))
            for w in gl.static_range(GROUPS):
                stage = w * OPTIONS.queued + stage_of(number, OPTIONS.queued)
                mbarrier.wait(rings.q.empty.index(stage), parity_of(number, OPTIONS.queued) ^ 1)
                mbarrier.expect(rings.q.full.index(stage), PANELS * q.block_type.nbytes)
                for panel in gl.static_range(PANELS):
                    where = at_step(q, batch, first_q, at + w * OPTIONS.queries, queries, head, panel * WIDTH)
                    slot = stage * room_for(PANELS) + panel
                    tma_load(q, where, rings.q.full.index(stage), rings.q.blocks.index(slot))
            group = head // sizes.share
            for i in range(high - low):
                j = (high - 1 - i) * OPTIONS.keys
                stage = acquire_block(rings.k, n, K_FREE, OPTIONS)
                load_k(k, batch, first_k, j, keys, group, rings.k, stage, PANELS)
                if rings.bias is not None:
                    load_bias(bias, batch, head, at, j, rings, stage, OPTIONS)
                stage = acquire_block(rings.v, n, V_FREE, OPTIONS)
                load_block(v, at_step(v, batch, first_k, j, keys, group), rings.v, stage)
                n += 1
            number += 1
        t = next_t
    write(tickets, number, (0,))


@gluon.jit
def attend(
    W: gl.constexpr,
    bias,
    out,
    sinks,
    lse,
    rings,
    staged,
    tickets,
    runs_ptr,
    sizes,
    OPTIONS: gl.constexpr,
    OUT_IN_Q: gl.constexpr,
):
    """A consumer: out and lse of the queries of group W in the program's tiles.

    staged: where out is before its copy; with OUT_IN_Q, blocks of q.
    """
    TYPE: gl.constexpr = rings.v.blocks.dtype
    QUERIES: gl.constexpr = OPTIONS.queries
    KEYS: gl.constexpr = OPTIONS.keys
    WINDOW: gl.constexpr = OPTIONS.window
    EXPONENT: gl.constexpr = OPTIONS.factors.exponent
    COLUMNS: gl.constexpr = rings.v.blocks.shape[len(rings.v.blocks.shape) - 1]
    S: gl.constexpr = of_products(KEYS)
    R: gl.constexpr = of_products(COLUMNS)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, R, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    OUT_SLOT: gl.constexpr = W * (staged.shape[0] // (2 if OPTIONS.groups == 2 else 4))
    none = gl.zeros([QUERIES, KEYS], gl.float32, S)
    if rings.bias is not None:
        rings = Rings(rings.q, rings.k, rings.v, rings.bias[W])
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        tile = query_ticket(tickets, number)
        release(tickets, number)
        queries, keys = tile.queries, tile.keys
        own = tile.at + W * QUERIES
        bottom, top = unmasked(own, queries, keys, tile.low, tile.high, WINDOW, QUERIES, KEYS)
        i = own + gl.arange(0, QUERIES, ROW)

        largest = gl.full([QUERIES], float("-inf"), gl.float32, ROW)
        if sinks.pointer is not None:
            sink = gl.load(sinks.pointer + tile.head * sinks.head) * (LOG2E / EXPONENT)
            largest = gl.full([QUERIES], sink, gl.float32, ROW)
        q_stage = W * OPTIONS.queued + stage_of(number, OPTIONS.queued)
        q = q_panels(rings.q.blocks, q_stage, OPTIONS.panels)
        k = panels_of(rings.k.blocks, stage_of(n, OPTIONS.stages), OPTIONS.panels)
        mbarrier.wait(rings.q.full.index(q_stage), parity_of(number, OPTIONS.queued))
        wait_full(rings.k, n)
        s = over_panels(q, k, none, OPTIONS.size, OPTIONS.panels)
        of_block, pairs = None, None
        if rings.bias is not None:
            of_block = bias_of(rings.bias.index(stage_of(n, OPTIONS.stages)), S)
        elif OPTIONS.reads_bias:
            pairs = bias_of_sequence(bias, tile, runs_ptr, sizes)
            of_block = read_bias(pairs, i, tile.high - 1, queries, keys, KEYS, S)
        s = warpgroup_mma_wait(0, deps=[s])
        release_block(rings.k, n, K_FREE, OPTIONS)
        s = scores(s, i, tile.high - 1, True, queries, keys, OPTIONS, of_block)
        largest, _before, p = softmax(s, largest, EXPONENT, of_block is not None)
        total = part_sums(p)
        p = gl.convert_layout(p.to(TYPE), LEFT, assert_trivial=True)
        result = gl.zeros([QUERIES, COLUMNS], gl.float32, R)
        sums = Sums(largest, total, result, p)
        for step in range(tile.high - 1 - tile.low):
            block = tile.high - 2 - step
            border = (block >= top) | (block < bottom)
            sums = add_block(sums, n, q, none, rings, i, block, border, queries, keys, OPTIONS, pairs)
            n += 1
        if not OUT_IN_Q:
            mbarrier.arrive(rings.q.empty.index(q_stage))
        stage = stage_of(n, OPTIONS.stages)
        wait_full(rings.v, n)
        result = warpgroup_mma(sums.p, matrix(rings.v.blocks.index(stage)), sums.result, is_async=True)
        n += 1
        number += 1
        wait_full(tickets, number)
        result = warpgroup_mma_wait(0, deps=[result])
        release_block(rings.v, n - 1, V_FREE, OPTIONS)

        whole = gl.convert_layout(gl.sum(sums.total, 1), ROW, assert_trivial=True)
        if sinks.pointer is not None:
            whole += gl.where(sink > float("-inf"), gl.exp2((sink - sums.largest) * EXPONENT), 0.0)
        some = whole != 0
        whole = gl.where(some, whole, 1.0)
        inverse = gl.convert_layout(1.0 / whole, gl.SliceLayout(1, R), assert_trivial=True)
        tma.store_wait(0)
        matrix(staged.index(OUT_SLOT)).store((result * inverse[:, None]).to(TYPE))
        fence_async_shared()
        tma_store(out, at_step(out, tile.batch, tile.first_q, own, queries, tile.head), staged.index(OUT_SLOT))
        if OUT_IN_Q:
            tma.store_wait(0)
            mbarrier.arrive(rings.q.empty.index(q_stage))
        logarithm = gl.where(some, gl.fma(sums.largest, EXPONENT, gl.log2(whole)) * LN2, float("-inf"))
        logarithm = gl.where(tile.outside != 0, 0.0, logarithm)  # results of steps of no sequence are 0
        batch, first_q = tile.batch, tile.first_q
        if runs_ptr is not None:  # first_q is a step of all rows
            batch = first_q // sizes.queries
            first_q -= batch * sizes.queries
        row = lse.pointer + gl.cast(batch, gl.int64) * lse.batch + gl.cast(tile.head, gl.int64) * lse.head
        gl.store(row + (first_q + i).to(gl.int64) * lse.step, logarithm, mask=i < queries)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["sizes"])
def forward(
    q,
    k,
    v,
    bias,
    sinks,
    tile_list_ptr,
    runs_ptr,
    counter_ptr,
    out,
    lse,
    sizes,
    OPTIONS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """q, k, v, out: tensor descriptors. bias: one, too, or an array with its strides. tile_list: where sequences are
    packed or ids tell them apart; see `schedule.list_tiles`. runs: of ids. counter: 0 at first, where tiles are drawn.
    """
    STAGES: gl.constexpr = OPTIONS.stages
    GROUPS: gl.constexpr = OPTIONS.groups
    QUEUED: gl.constexpr = OPTIONS.queued
    SLOTS: gl.constexpr = 2 if GROUPS == 2 else 4  # shapes are powers of two
    q_blocks = allocate(q, SLOTS * QUEUED * room_for(OPTIONS.panels))
    k_blocks = allocate_panels(k, STAGES, OPTIONS.panels)
    v_blocks = allocate(v, STAGES)
    # Where there is little memory, out is staged in the blocks of q.
    OUT_IN_Q: gl.constexpr = QUEUED == 1 and (OPTIONS.panels > 1 or q.block_shape == out.block_shape)
    if OUT_IN_Q:
        staged = q_blocks._reinterpret(out.dtype, shape_of_blocks(out, in_place_of(q_blocks, out)), out.layout)
    else:
        staged = allocate(out, SLOTS)
    q_ring = ring_of(q_blocks, GROUPS * QUEUED, 1)
    if bias is not None and not OPTIONS.reads_bias:
        # Both the copy of k and that of the bias arrive where a block is full.
        own = (allocate(bias, STAGES), allocate(bias, STAGES))
        rings = Rings(q_ring, ring_of(k_blocks, STAGES, GROUPS, 2), ring_of(v_blocks, STAGES, GROUPS), own)
    elif OPTIONS.by_warps:
        k_ring, v_ring = Ring(k_blocks, barriers(STAGES, 1), None), Ring(v_blocks, barriers(STAGES, 1), None)
        rings = Rings(q_ring, k_ring, v_ring, None)
    else:
        rings = Rings(q_ring, ring_of(k_blocks, STAGES, GROUPS), ring_of(v_blocks, STAGES, GROUPS), None)
    tickets = ring_of_tickets(GROUPS)
    fence_async_shared()
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = first_tile(counter_ptr, sizes.drawn)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, GROUPS * OPTIONS.queries)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (0, bias, out, sinks, lse, rings, staged, tickets, runs_ptr, sizes, OPTIONS, OUT_IN_Q)),
                (attend, (1, bias, out, sinks, lse, rings, staged, tickets, runs_ptr, sizes, OPTIONS, OUT_IN_Q)),
                (fetch, (q, k, v, bias, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS)),
            ],
            [WARPS, 1],
            [OPTIONS.registers, FETCH_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (attend, (0, bias, out, sinks, lse, rings, staged, tickets, runs_ptr, sizes, OPTIONS, OUT_IN_Q)),
                (attend, (1, bias, out, sinks, lse, rings, staged, tickets, runs_ptr, sizes, OPTIONS, OUT_IN_Q)),
                (attend, (2, bias, out, sinks, lse, rings, staged, tickets, runs_ptr, sizes, OPTIONS, OUT_IN_Q)),
                (fetch, (q, k, v, bias, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS)),
            ],
            [WARPS, WARPS, 1],
            [OPTIONS.registers, OPTIONS.registers, FEWER_REGISTERS],
        )
