"""Attention, backward, on Hopper: `backward_fused` of heads of 64, with two tiles of queries a step.

Symbols: ../README.md.

Each group of warps has half of the keys for dk and dv, as in `backward_fused`. For dq it has all columns of one of the
two tiles, and not half of the columns of a single one: products of 64 columns read less shared memory for each of their
terms than those of 32. Groups and the other warps tell each other by named barriers, at which no warp waits for its
group.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import negative, tma_store
from retrograd.core.kernels.named_barriers import arrive, sync
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, barriers, release, release_by_warps, stage_of, wait_full

from .backward_fused import (
    DOUT_FREE,
    FEW_REGISTERS,
    Q_FREE,
    READERS,
    Arrays,
    Held,
    Rings,
    fetch,
    pass_turn,
    read_turn,
    see_writes,
    tma_add,
)
from .backward_products import store_dk_dv
from .schedule import at_step, tiles_of_head, turn_of
from .scores import base_of, deltas_from, differences_from, probabilities
from .tickets import draw, has_tile, of_keys, ring_of_tickets
from .walk import at_border, step_of, steps_unmasked, walk_of
from .wgmma import WARPS, allocate, matrix, of_products

HALF = gl.constexpr(64)  # queries of one of the two tiles of a step
# Named barriers: ds of a step's group is there, a pair of numbers for every other step; dq of a tile is there.
DS_FULL, DQ_FULL = gl.constexpr(4), gl.constexpr(12)
BOTH_GROUPS = gl.constexpr(2 * 32 * WARPS.value)
GROUP_AND_WARP = gl.constexpr(32 * WARPS.value + 32)


@gluon.jit
def ds_full(n, W: gl.constexpr):
    """The number of the barrier at which group W tells that its ds of step n is there."""
    return DS_FULL + 2 * stage_of(n, 2) + W


@gluon.jit
def dq_of_step(n, W: gl.constexpr, k, ds_blocks, none_q):
    """Start the products of ds of step n, of tile W of its queries, with all keys."""
    ds = ds_blocks.index(stage_of(n, 2)).slice(W * HALF, HALF, dim=1)
    keys = matrix(k.blocks.index(forget(gl.to_tensor(0))))
    return warpgroup_mma(ds.permute((1, 0)), keys, none_q, use_acc=False, is_async=True)


@gluon.jit
def hand_over(part, n, W: gl.constexpr, dq_blocks, dq_empty):
    """Leave dq of tile W of the queries of step n to the warp that adds it."""
    mbarrier.wait(dq_empty.index(W), (n & 1) ^ 1)
    matrix(dq_blocks.index(W)).store(part)
    fence_async_shared()
    arrive(DQ_FULL + W, GROUP_AND_WARP)


@gluon.jit
def differentiate_keys(
    W: gl.constexpr, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, n, number, OPTIONS: gl.constexpr
):
    """dk and dv of one half, W, of the keys; dq of tile W of the queries, from all keys. Pairs are (keys, queries).

    A step takes its second tile first, as the walk goes from the last queries to the first. Its dq is computed in the
    step after it, when the ds of both groups are there.

    n: of the program's steps; returned is the one after the tile.
    """
    TYPE: gl.constexpr = rings.q.blocks.dtype
    R: gl.constexpr = OPTIONS.keys // 2
    D: gl.constexpr = rings.k.blocks.shape[len(rings.k.blocks.shape) - 1]
    V: gl.constexpr = rings.v.blocks.shape[len(rings.v.blocks.shape) - 1]
    S: gl.constexpr = of_products(HALF)
    OF_K: gl.constexpr = of_products(D)
    OF_V: gl.constexpr = of_products(V)
    LEFT_K: gl.constexpr = gl.DotOperandLayout(0, OF_K, 2)
    LEFT_V: gl.constexpr = gl.DotOperandLayout(0, OF_V, 2)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([R, HALF], gl.float32, S)
    none_q = gl.zeros([HALF, D], gl.float32, OF_K)
    total_k = gl.zeros([R, D], gl.float32, OF_K)
    total_v = gl.zeros([R, V], gl.float32, OF_V)
    begin, end = n, n + OPTIONS.share * of_keys(tickets, number, "steps")
    first, until = steps_unmasked(end, tickets, number, OPTIONS)
    while n < end:
        border, left = at_border(n, first, until, OPTIONS), end - n
        q_stage, dout_stage = stage_of(n, OPTIONS.q_stages), stage_of(n, OPTIONS.dout_stages)
        q_tile, dout_tile = matrix(rings.q.blocks.index(q_stage)), matrix(rings.dout.blocks.index(dout_stage))
        q0, q1 = q_tile.slice(0, HALF), q_tile.slice(HALF, HALF)
        dout0, dout1 = dout_tile.slice(0, HALF), dout_tile.slice(HALF, HALF)
        ds = ds_blocks.index(stage_of(n, 2)).slice(W * R, R)
        if n > begin:
            sync(ds_full(n - 1, 1 - W), BOTH_GROUPS)
        # Of the first step nobody takes it, so that no product is in a branch.
        part = dq_of_step(n - 1, W, rings.k, ds_blocks, none_q)
        wait_full(rings.q, n)
        k = matrix(rings.k.blocks.index(forget(gl.to_tensor(0)))).slice(W * R, R)
        s1 = warpgroup_mma(k, q1.permute((1, 0)), none, use_acc=False, is_async=True)
        s0 = warpgroup_mma(k, q0.permute((1, 0)), none, use_acc=False, is_async=True)
        wait_full(rings.dout, n)
        v = matrix(rings.v.blocks.index(forget(gl.to_tensor(W))))
        dp1 = warpgroup_mma(v, dout1.permute((1, 0)), none, use_acc=False, is_async=True)
        part = warpgroup_mma_wait(3, deps=[part])
        if n > begin:
            hand_over(part, n - 1, W, dq_blocks, dq_empty)

        base = base_of(rings.base, q_stage, HALF, HALF, COLUMN)
        s1 = warpgroup_mma_wait(2, deps=[s1])
        p1 = probabilities(s1, negative(base), border, W * R, HALF, left, tickets, number, OPTIONS)
        total_v = warpgroup_mma(
            gl.convert_layout(p1.to(TYPE), LEFT_V, assert_trivial=True), dout1, total_v, is_async=True
        )
        delta = deltas_from(HALF, p1, border, n, end, rings, tickets, number, OPTIONS)
        s0, dp1 = warpgroup_mma_wait(1, deps=[s0, dp1])
        ds1 = differences_from(HALF, p1, dp1, delta, n, rings, OPTIONS)
        dp0 = warpgroup_mma(v, dout0.permute((1, 0)), none, use_acc=False, is_async=True)
        ds.slice(HALF, HALF, dim=1).store(ds1)
        total_k = warpgroup_mma(gl.convert_layout(ds1, LEFT_K, assert_trivial=True), q1, total_k, is_async=True)

        base = base_of(rings.base, q_stage, 0, HALF, COLUMN)
        p0 = probabilities(s0, negative(base), border, W * R, 0, left, tickets, number, OPTIONS)
        total_v = warpgroup_mma(
            gl.convert_layout(p0.to(TYPE), LEFT_V, assert_trivial=True), dout0, total_v, is_async=True
        )
        delta = deltas_from(0, p0, border, n, end, rings, tickets, number, OPTIONS)
        dp0 = warpgroup_mma_wait(2, deps=[dp0])
        ds0 = differences_from(0, p0, dp0, delta, n, rings, OPTIONS)
        ds.slice(0, HALF, dim=1).store(ds0)
        fence_async_shared()
        arrive(ds_full(n, W), BOTH_GROUPS)
        total_k = warpgroup_mma(gl.convert_layout(ds0, LEFT_K, assert_trivial=True), q0, total_k, is_async=True)
        total_v = warpgroup_mma_wait(1, deps=[total_v])
        release_by_warps(rings.dout, n, DOUT_FREE, READERS)
        total_k = warpgroup_mma_wait(0, deps=[total_k])
        release_by_warps(rings.q, n, Q_FREE, READERS)
        n += 1
    if end > begin:
        sync(ds_full(end - 1, 1 - W), BOTH_GROUPS)
        part = warpgroup_mma_wait(0, deps=[dq_of_step(end - 1, W, rings.k, ds_blocks, none_q)])
        hand_over(part, end - 1, W, dq_blocks, dq_empty)
    store_dk_dv(W, total_k, total_v, dk, dv, rings, ds_blocks, tickets, number, OPTIONS)
    return n


@gluon.jit
def differentiate(W: gl.constexpr, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, OPTIONS: gl.constexpr):
    """What group W of two computes of dk, dv and dq of the program's tiles."""
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        n = differentiate_keys(W, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, n, number, OPTIONS)
        number += 1
        wait_full(tickets, number)


@gluon.jit
def add(W: gl.constexpr, dq_sum, turns_ptr, dq_blocks, dq_empty, tickets, tiles_q, OPTIONS: gl.constexpr):
    """Add dq of tile W of the queries of each step to sums, in turn; the first one is stored."""
    WINDOW: gl.constexpr = OPTIONS.window
    QUERIES: gl.constexpr = OPTIONS.queries
    KEYS: gl.constexpr = OPTIONS.keys
    number = 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        batch, group = of_keys(tickets, number, "batch"), of_keys(tickets, number, "group")
        first_q = of_keys(tickets, number, "first_q")
        queries, keys, at, low = walk_of(tickets, number)
        steps, rows_at = of_keys(tickets, number, "steps"), of_keys(tickets, number, "rows_at")
        release(tickets, number)
        for left in range(OPTIONS.share * steps, 0, -1):
            head, m = step_of(left, group, low, OPTIONS.share)
            own_turn_ptr = turns_ptr + 1 + 2 * (rows_at + head * tiles_q + m) + W
            own_turn = turn_of(at, m * QUERIES, queries, keys, WINDOW, KEYS)
            where = at_step(dq_sum, batch, first_q, m * QUERIES + W * HALF, queries, head)
            # A turn that has come stays: it is looked for while dq is computed.
            while read_turn(own_turn_ptr) != own_turn:
                pass
            sync(DQ_FULL + W, GROUP_AND_WARP)
            own_turn = see_writes(own_turn)
            if own_turn == 0:
                tma_store(dq_sum, where, dq_blocks.index(W))
            else:
                tma_add(dq_sum, where, dq_blocks.index(W))
            tma.store_wait(0)
            mbarrier.arrive(dq_empty.index(W))
            pass_turn(own_turn_ptr, own_turn + 1)
        number += 1
        wait_full(tickets, number)


@gluon.jit(do_not_specialize=["sizes"])
def backward_pairs(
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
    """As `backward_fused`; turns has a number for each of the two tiles of queries of a step."""
    TYPE: gl.constexpr = q.dtype
    q_blocks = allocate(q, OPTIONS.q_stages)
    dout_blocks = allocate(dout, OPTIONS.dout_stages)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ds_blocks = gl.allocate_shared_memory(TYPE, [2, OPTIONS.keys, OPTIONS.queries], ds_layout)
    dq_blocks, dq_empty = allocate(dq_sum, 2), barriers(2, 1)
    k_held = Held(allocate(k, 1), barriers(1, 2).index(0))
    v_held = Held(allocate(v, 2), barriers(1, 2).index(0))
    q_ring = Ring(q_blocks, barriers(OPTIONS.q_stages, 1), None)
    dout_ring = Ring(dout_blocks, barriers(OPTIONS.dout_stages, 1), None)
    tickets = ring_of_tickets(4)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout, base, delta)
    of_base, of_delta = allocate(base, OPTIONS.q_stages), allocate(delta, OPTIONS.dout_stages)
    rings = Rings(q_ring, k_held, v_held, dout_ring, of_base, of_delta)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(turns_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, OPTIONS.keys)
    gl.warp_specialize(
        [
            (differentiate, (0, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, OPTIONS)),
            (differentiate, (1, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, OPTIONS)),
            (fetch, (arrays, rings, tickets, t, tiles, turns_ptr, tile_list_ptr, sizes, OPTIONS, False, True)),
            (add, (0, dq_sum, turns_ptr, dq_blocks, dq_empty, tickets, sizes.tiles_q, OPTIONS)),
            (add, (1, dq_sum, turns_ptr, dq_blocks, dq_empty, tickets, sizes.tiles_q, OPTIONS)),
        ],
        [WARPS, 1, 1, 1],
        [OPTIONS.registers, FEW_REGISTERS, FEW_REGISTERS, FEW_REGISTERS],
    )
