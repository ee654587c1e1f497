"""Attention, backward, on Hopper: dk, dv and dq in one walk over the queries. Symbols: ../README.md.

A program takes tiles of keys of a group, one after the other, and walks over the tiles of queries that see each, from
the last to the first, each of them in all heads of the group. Its warps are of three kinds:
    fetch          one warp, the producer: copies k and v, and tile after tile of q and dout with their rows' base and
                   delta, by TMA
    differentiate  two groups, the consumers: five products, for half of the keys each
    add            two warps: add the program's part of dq to memory, when it is its turn
The tiles of keys that see a tile of queries add to its dq in their order. A program draws its tiles by tickets, and a
tile has a higher ticket than those that it waits for, so these have started: no deadlock.
"""

from typing import Any, NamedTuple

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from retrograd.core.kernels.gluon import tma_load, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
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

from .backward_products import differentiate_keys
from .schedule import ALIGNED, at_step, queries_seen, tile_of_keys, tiles_of_head, turn_of
from .tickets import KeyTicket, draw, has_tile, of_keys, ring_of_tickets, write
from .walk import step_of, walk_of
from .wgmma import WARPS, allocate

FEW_REGISTERS = gl.constexpr(24)
# Named barriers where warps release q and dout one by one, one for each of two stages.
Q_FREE, DOUT_FREE = gl.constexpr(8), gl.constexpr(10)
READERS = gl.constexpr(2 * 32 * WARPS.value + 32)  # threads of the two groups, and of the warp that copies


class Arrays(NamedTuple):
    """The tensor descriptors of what is copied to shared memory."""

    q: Any
    k: Any
    v: Any
    dout: Any
    base: Any
    delta: Any


class Rings(NamedTuple):
    """Their blocks. k comes with the first q, v with the first dout; base with each q, delta with each dout.

    A tile of keys is one block of k or v, or two, one for each group of warps: stages are of tiles.
    """

    q: Ring
    k: Ring
    v: Ring
    dout: Ring
    base: Any
    delta: Any


@gluon.constexpr_function
def parts_of(blocks, empty):
    """The number of blocks of a tile of keys, in a ring of tiles."""
    return blocks.shape[0] // empty.shape[0]


@builtin
def tma_add(desc, coord, src, _semantic=None):
    """Add a block in shared memory to one in global memory."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


@gluon.jit
def read_turn(turn_ptr):
    """A counter, and with it what was written before it; all lanes read the same."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];",
        "=r,l",
        [turn_ptr.to(gl.int64, bitcast=True)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def see_writes(turn):
    """`turn`; what other programs wrote before it is there for copies by TMA, too."""
    return gl.inline_asm_elementwise(
        "fence.proxy.async.global; mov.b32 $0, $1;", "=r,r", [turn], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def pass_turn(turn_ptr, turn):
    """Write a counter once this thread's copies by TMA are in global memory."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred first;
        .reg .b32 lane;
        cp.async.bulk.wait_group 0;
        fence.proxy.async.global;
        bar.warp.sync -1;
        mov.u32 lane, %laneid;
        setp.eq.u32 first, lane, 0;
        @first st.release.gpu.global.s32 [$1], $2;
        mov.b32 $0, $2;
        }""",
        "=r,l,r",
        [turn_ptr.to(gl.int64, bitcast=True), turn],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def load_parts(array, batch, first, at, keys, group, full, ring, number):
    """Copy the program's tile of keys of this number."""
    ROWS: gl.constexpr = array.block_shape[len(array.block_shape) - 3]
    PARTS: gl.constexpr = parts_of(ring.blocks, ring.empty)
    block = PARTS * stage_of(number, ring.empty.shape[0])
    for part in gl.static_range(PARTS):
        where = at_step(array, batch, first, at + part * ROWS, keys, group)
        tma_load(array, where, full, ring.blocks.index(block + part))


@gluon.jit
def acquire_q(ring, n, known, BY_WARPS: gl.constexpr):
    """Wait until there is room for tile n of q, unless that is `known`; returns its stage."""
    if BY_WARPS:
        if n != known:
            acquire_from_warps(ring, n, Q_FREE, READERS)
        return stage_of(n, ring.full.shape[0])
    else:
        return acquire(ring, n)


@gluon.jit
def acquire_dout(ring, n, BY_WARPS: gl.constexpr):
    """Wait until there is room for tile n of dout; returns its stage."""
    if BY_WARPS:
        return acquire_from_warps(ring, n, DOUT_FREE, READERS)
    else:
        return acquire(ring, n)


@gluon.jit
def fetch(
    arrays,
    rings,
    tickets,
    t,
    tiles,
    counter_ptr,
    tile_list_ptr,
    sizes,
    OPTIONS: gl.constexpr,
    BY_WARPS: gl.constexpr = False,
):
    """The producer: draws tickets, and copies what the program reads for them.

    BY_WARPS: warps release q and dout one by one.
    """
    WINDOW: gl.constexpr = OPTIONS.window
    SHARE: gl.constexpr = OPTIONS.share
    KEYS: gl.constexpr = OPTIONS.keys
    QUERIES: gl.constexpr = OPTIONS.queries
    OF_Q: gl.constexpr = arrays.q.block_type.nbytes + QUERIES * 4
    OF_DOUT: gl.constexpr = arrays.dout.block_type.nbytes + QUERIES * 4
    OF_K: gl.constexpr = parts_of(rings.k.blocks, rings.k.empty) * arrays.k.block_type.nbytes
    OF_V: gl.constexpr = parts_of(rings.v.blocks, rings.v.empty) * arrays.v.block_type.nbytes
    n, number = 0, 0
    known = 0  # a tile of q that is known to have room
    while t < tiles * sizes.rows:
        tile = tile_of_keys(t, tiles, tile_list_ptr, sizes, SHARE, KEYS, QUERIES)
        batch, group, first_q, queries, first_k, keys, at, rows_at = tile
        if keys > 0:
            low, steps = queries_seen(at, queries, keys, WINDOW, KEYS, QUERIES)
            write(tickets, number, KeyTicket(1, batch, group, first_q, queries, first_k, keys, at, rows_at, low, steps))
            for left in range(SHARE * steps, 0, -1):
                head, m = step_of(left, group, low, SHARE)
                row, start = batch * sizes.heads + head, first_q + m * QUERIES
                if tile_list_ptr is not None:
                    copy = start % ALIGNED
                    row, start = row + copy * (sizes.rows * SHARE), start - copy
                where = at_step(arrays.q, batch, first_q, m * QUERIES, queries, head)
                stage = acquire_q(rings.q, n, known, BY_WARPS)
                # k comes with the first q, and v with the first dout. A tile without steps waits for neither: groups
                # release a ticket when they are done with k and v, and `write` does not run two tickets ahead of them.
                if left == SHARE * steps:
                    acquire(rings.k, number)
                    mbarrier.expect(rings.q.full.index(stage), OF_Q + OF_K)
                    load_parts(arrays.k, batch, first_k, at, keys, group, rings.q.full.index(stage), rings.k, number)
                else:
                    mbarrier.expect(rings.q.full.index(stage), OF_Q)
                tma_load(arrays.q, where, rings.q.full.index(stage), rings.q.blocks.index(stage))
                tma_load(arrays.base, [row, start], rings.q.full.index(stage), rings.base.index(stage))
                stage = acquire_dout(rings.dout, n, BY_WARPS)
                if left == SHARE * steps:
                    acquire(rings.v, number)
                    mbarrier.expect(rings.dout.full.index(stage), OF_DOUT + OF_V)
                    load_parts(arrays.v, batch, first_k, at, keys, group, rings.dout.full.index(stage), rings.v, number)
                else:
                    mbarrier.expect(rings.dout.full.index(stage), OF_DOUT)
                tma_load(arrays.delta, [row, start], rings.dout.full.index(stage), rings.delta.index(stage))
                tma_load(arrays.dout, where, rings.dout.full.index(stage), rings.dout.blocks.index(stage))
                n += 1
            number += 1
        # Where turns count, a ticket drawn early would keep others waiting: draw when the program is at the last steps.
        acquire_q(rings.q, n, known, BY_WARPS)
        known = n
        t = draw(counter_ptr)
    write(tickets, number, (0,))


@gluon.jit
def add(W: gl.constexpr, dq_sum, turns_ptr, dq_ring, tickets, tiles_q, OPTIONS: gl.constexpr):
    """Add the program's part of dq to sums, in turn; the first one is stored. Each of two such warps takes every other
    step: one may wait until its addition is in memory while the other one starts the next.
    """
    WINDOW: gl.constexpr = OPTIONS.window
    SHARE: gl.constexpr = OPTIONS.share
    KEYS: gl.constexpr = OPTIONS.keys
    QUERIES: gl.constexpr = OPTIONS.queries
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        batch, group = of_keys(tickets, number, "batch"), of_keys(tickets, number, "group")
        first_q = of_keys(tickets, number, "first_q")
        queries, keys, at, low = walk_of(tickets, number)
        steps, rows_at = of_keys(tickets, number, "steps"), of_keys(tickets, number, "rows_at")
        release(tickets, number)
        for left in range(SHARE * steps, 0, -1):
            if n % 2 == W:
                head, m = step_of(left, group, low, SHARE)
                own_turn_ptr = turns_ptr + 1 + rows_at + head * tiles_q + m
                own_turn = turn_of(at, m * QUERIES, queries, keys, WINDOW, KEYS)
                where = at_step(dq_sum, batch, first_q, m * QUERIES, queries, head)
                mbarrier.wait(dq_ring.full.index(W), parity_of(n, 2))
                while read_turn(own_turn_ptr) != own_turn:
                    pass
                own_turn = see_writes(own_turn)
                if own_turn == 0:
                    tma_store(dq_sum, where, dq_ring.blocks.index(W))
                else:
                    tma_add(dq_sum, where, dq_ring.blocks.index(W))
                tma.store_wait(0)
                mbarrier.arrive(dq_ring.empty.index(W))
                pass_turn(own_turn_ptr, own_turn + 1)
            n += 1
        number += 1
        wait_full(tickets, number)


@gluon.jit
def differentiate(W: gl.constexpr, dk, dv, rings, ds_ring, dq_ring, tickets, OPTIONS: gl.constexpr):
    """What group W of two computes of dk, dv and dq of the program's tiles."""
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        n = differentiate_keys(W, dk, dv, rings, ds_ring, dq_ring, tickets, n, number, OPTIONS)
        number += 1
        wait_full(tickets, number)


@gluon.jit(do_not_specialize=["sizes"])
def backward_fused(
    q,
    k,
    v,
    dout,
    base,
    delta,
    tile_list_ptr,
    runs_ptr,
    turns_ptr,
    dq_sum,
    dk,
    dv,
    sizes,
    OPTIONS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Tensor descriptors: q, k, v, dout, dk, dv; base and delta, as `deltas` has stored them; dq_sum (batch, queries,
    heads, D), without its factor. turns, 0 at first: how many tickets are drawn; then how many tiles of keys have added
    to each tile of queries (heads of all rows, tiles of queries). tile_list, runs: as `forward`.
    """
    TYPE: gl.constexpr = q.dtype
    Q_STAGES: gl.constexpr = OPTIONS.q_stages
    DOUT_STAGES: gl.constexpr = OPTIONS.dout_stages
    q_blocks = allocate(q, Q_STAGES)
    k_blocks = allocate(k, 1)
    v_blocks = allocate(v, 2)
    dout_blocks = allocate(dout, DOUT_STAGES)
    base_blocks = allocate(base, Q_STAGES)
    delta_blocks = allocate(delta, DOUT_STAGES)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ds_blocks = gl.allocate_shared_memory(TYPE, [2, OPTIONS.keys, OPTIONS.queries], ds_layout)
    dq_blocks = allocate(dq_sum, 2)
    k_ring = Ring(k_blocks, None, barriers(1, 2))
    v_ring = Ring(v_blocks, None, barriers(1, 2))
    q_ring, dout_ring = ring_of(q_blocks, Q_STAGES, 2), ring_of(dout_blocks, DOUT_STAGES, 2)
    ds_ring, dq_ring = ring_of(ds_blocks, 2, 2, PRODUCERS=2), ring_of(dq_blocks, 2, 1, PRODUCERS=2)
    tickets = ring_of_tickets(4)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout, base, delta)
    rings = Rings(q_ring, k_ring, v_ring, dout_ring, base_blocks, delta_blocks)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(turns_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, OPTIONS.keys)
    gl.warp_specialize(
        [
            (differentiate, (0, dk, dv, rings, ds_ring, dq_ring, tickets, OPTIONS)),
            (differentiate, (1, dk, dv, rings, ds_ring, dq_ring, tickets, OPTIONS)),
            (fetch, (arrays, rings, tickets, t, tiles, turns_ptr, tile_list_ptr, sizes, OPTIONS)),
            (add, (0, dq_sum, turns_ptr, dq_ring, tickets, sizes.tiles_q, OPTIONS)),
            (add, (1, dq_sum, turns_ptr, dq_ring, tickets, sizes.tiles_q, OPTIONS)),
        ],
        [WARPS, 1, 1, 1],
        [OPTIONS.registers, FEW_REGISTERS, FEW_REGISTERS, FEW_REGISTERS],
    )
