"""Attention, backward, on Hopper: `backward_fused` of heads to 64, with two tiles of queries a step.

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

from retrograd.core.kernels.gluon import tma_store
from retrograd.core.kernels.named_barriers import arrive, sync
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, barriers, release, release_by_warps, stage_of, wait_full

from .backward_fused import (
    DOUT_FREE,
    FEW_REGISTERS,
    Q_FREE,
    READERS,
    Arrays,
    Rings,
    fetch,
    pass_turn,
    read_turn,
    see_writes,
    tma_add,
)
from .schedule import at_step, tiles_of_head, turn_of
from .scores import base_of, deltas_from, differences_from, probabilities
from .tickets import draw, has_tile, of_keys, ring_of_tickets
from .walk import at_border, keys_of, step_of, steps_unmasked, walk_of
from .wgmma import WARPS, add_left, allocate, in_order_of_sums, matrix, of_products, shape_of_blocks

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
def ds_block(n, W: gl.constexpr):
    """The block of ds of step n and the keys of group W."""
    return 2 * stage_of(n, 2) + W


@gluon.jit
def scores_of(query: gl.constexpr, n, number, W: gl.constexpr, rings, none):
    """Start the products of the keys of group W with 64 queries of step n, from number `query` on."""
    R: gl.constexpr = none.shape[0]
    wait_full(rings.q, n)
    k = matrix(rings.k.blocks.index(forget(stage_of(number, 2)))).slice(W * R, R)
    q = matrix(rings.q.blocks.index(stage_of(n, rings.q.full.shape[0]))).slice(query, HALF)
    return warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def dq_of_step(n, number, W: gl.constexpr, k, ds_blocks, none_q):
    """Start the products of ds of step n, of tile W of its queries, with all keys."""
    R: gl.constexpr = ds_blocks.shape[1]
    keys = matrix(k.blocks.index(forget(stage_of(number, 2))))
    block = ds_block(n, 0)
    ds0 = ds_blocks.index(block).slice(W * HALF, HALF, dim=1).permute((1, 0))
    ds1 = ds_blocks.index(block + 1).slice(W * HALF, HALF, dim=1).permute((1, 0))
    part = warpgroup_mma(ds0, keys.slice(0, R), none_q, use_acc=False, is_async=True)
    return warpgroup_mma(ds1, keys.slice(R, R), part, is_async=True)


@gluon.jit
def hand_over(part, n, W: gl.constexpr, dq_blocks, dq_empty):
    """Leave dq of tile W of the queries of step n to the warp that adds it."""
    mbarrier.wait(dq_empty.index(W), (n & 1) ^ 1)
    matrix(dq_blocks.index(W)).store(in_order_of_sums(part))
    fence_async_shared()
    arrive(DQ_FULL + W, GROUP_AND_WARP)


@gluon.jit
def store_dk_dv(W: gl.constexpr, total_k, total_v, dk, dv, rings, ds_blocks, tickets, n, number, OPTIONS: gl.constexpr):
    """Store dk and dv of half W of the keys, whose last step came before n; release k and the ticket.

    They are staged where ds of step n will be. The other group is done with what was there, ds of step n - 2: it told
    that ds of step n - 1 is there after its products with the one before.
    """
    TYPE: gl.constexpr = rings.q.blocks.dtype
    R: gl.constexpr = OPTIONS.keys // 2
    release(rings.k, number)
    batch, first_k, at, keys, group = keys_of(tickets, number)
    staged = ds_blocks.index(ds_block(n, W))._reinterpret(TYPE, shape_of_blocks(dk, 2), dk.layout)
    matrix(staged.index(0)).store((total_k * OPTIONS.scale).to(TYPE))
    matrix(staged.index(1)).store(total_v.to(TYPE))
    fence_async_shared()
    tma_store(dk, at_step(dk, batch, first_k, at + W * R, keys, group), staged.index(0))
    tma_store(dv, at_step(dv, batch, first_k, at + W * R, keys, group), staged.index(1))
    release(tickets, number)


@gluon.jit
def differentiate_keys(
    W: gl.constexpr, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, n, number, OPTIONS: gl.constexpr
):
    """dk and dv of one half, W, of the keys; dq of tile W of the queries, from all keys. Pairs are (keys, queries).

    A step takes its second tile first, as the walk goes from the last queries to the first. The scores of that tile are
    computed at the end of the step before: a step begins with exponentials, beside which the products for dp and those
    for dq of the step before run; the ds of both groups are there by then.

    n: of the program's steps; returned is the one after the tile.
    """
    TYPE: gl.constexpr = rings.q.blocks.dtype
    R: gl.constexpr = OPTIONS.keys // 2
    D: gl.constexpr = rings.k.blocks.shape[len(rings.k.blocks.shape) - 1]
    V: gl.constexpr = rings.v.blocks.shape[len(rings.v.blocks.shape) - 1]
    S: gl.constexpr = of_products(HALF)
    OF_K: gl.constexpr = of_products(D)
    OF_V: gl.constexpr = of_products(V)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([R, HALF], gl.float32, S)
    none_q = gl.zeros([HALF, D], gl.float32, OF_K)
    total_k = gl.zeros([R, D], gl.float32, OF_K)
    total_v = gl.zeros([R, V], gl.float32, OF_V)
    begin, end = n, n + OPTIONS.share * of_keys(tickets, number, "steps")
    first, until = steps_unmasked(end, tickets, number, OPTIONS)
    s1 = none
    if end > begin:
        s1 = warpgroup_mma_wait(0, deps=[scores_of(HALF, n, number, W, rings, none)])
        wait_full(rings.dout, n)
    # From registers v costs the products no shared memory.
    v = matrix(rings.v.blocks.index(W)).load(gl.DotOperandLayout(0, S, 2))
    fence_async_shared()
    tma.store_wait(0)  # of the tile before, from where ds comes next
    release(rings.v, number)
    while n < end:
        border, left = at_border(n, first, until, OPTIONS), end - n
        q_stage, dout_stage = stage_of(n, OPTIONS.q_stages), stage_of(n, OPTIONS.dout_stages)
        q_tile, dout_tile = matrix(rings.q.blocks.index(q_stage)), matrix(rings.dout.blocks.index(dout_stage))
        q0, q1 = q_tile.slice(0, HALF), q_tile.slice(HALF, HALF)
        dout0, dout1 = dout_tile.slice(0, HALF), dout_tile.slice(HALF, HALF)
        ds = ds_blocks.index(ds_block(n, W))
        wait_full(rings.dout, n)
        dp1 = warpgroup_mma(v, dout1.permute((1, 0)), none, use_acc=False, is_async=True)
        if n > begin:
            sync(ds_full(n - 1, 1 - W), BOTH_GROUPS)
        # Of the first step nobody takes it, so that no product is in a branch.
        part = dq_of_step(n - 1, number, W, rings.k, ds_blocks, none_q)

        base = base_of(rings.base, q_stage, HALF, HALF, COLUMN)
        p1 = probabilities(s1, base, border, W * R, HALF, left, tickets, number, OPTIONS)
        total_v = add_left(p1.to(TYPE), dout1, total_v)
        part = warpgroup_mma_wait(1, deps=[part])
        if n > begin:
            hand_over(part, n - 1, W, dq_blocks, dq_empty)
        s0 = scores_of(0, n, number, W, rings, none)
        delta = deltas_from(HALF, p1, border, n, end, rings, tickets, number, OPTIONS)
        dp1 = warpgroup_mma_wait(2, deps=[dp1])
        ds1 = differences_from(HALF, p1, dp1, delta, n, rings, OPTIONS)
        dp0 = warpgroup_mma(v, dout0.permute((1, 0)), none, use_acc=False, is_async=True)
        ds.slice(HALF, HALF, dim=1).store(ds1)
        total_k = add_left(ds1, q1, total_k)

        base = base_of(rings.base, q_stage, 0, HALF, COLUMN)
        s0 = warpgroup_mma_wait(2, deps=[s0])
        p0 = probabilities(s0, base, border, W * R, 0, left, tickets, number, OPTIONS)
        total_v = add_left(p0.to(TYPE), dout0, total_v)
        delta = deltas_from(0, p0, border, n, end, rings, tickets, number, OPTIONS)
        dp0 = warpgroup_mma_wait(2, deps=[dp0])
        ds0 = differences_from(0, p0, dp0, delta, n, rings, OPTIONS)
        ds.slice(0, HALF, dim=1).store(ds0)
        fence_async_shared()
        arrive(ds_full(n, W), BOTH_GROUPS)
        total_k = add_left(ds0, q0, total_k)
        # Of the last step once more, so that no product is in a branch.
        s1 = scores_of(HALF, gl.minimum(n + 1, end - 1), number, W, rings, none)
        total_v = warpgroup_mma_wait(2, deps=[total_v])
        release_by_warps(rings.dout, n, DOUT_FREE, READERS)
        total_k, s1 = warpgroup_mma_wait(0, deps=[total_k, s1])
        release_by_warps(rings.q, n, Q_FREE, READERS)
        n += 1
    if end > begin:
        sync(ds_full(end - 1, 1 - W), BOTH_GROUPS)
        part = warpgroup_mma_wait(0, deps=[dq_of_step(end - 1, number, W, rings.k, ds_blocks, none_q)])
        hand_over(part, end - 1, W, dq_blocks, dq_empty)
    store_dk_dv(W, total_k, total_v, dk, dv, rings, ds_blocks, tickets, n, number, OPTIONS)
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
    tma.store_wait(0)


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
    gl.static_assert(OPTIONS.q_stages == 2 and OPTIONS.dout_stages == 2)  # the barriers of q and dout are for two
    gl.static_assert(dk.block_shape == dv.block_shape)
    q_blocks = allocate(q, OPTIONS.q_stages)
    dout_blocks = allocate(dout, OPTIONS.dout_stages)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ds_blocks = gl.allocate_shared_memory(TYPE, [4, OPTIONS.keys // 2, OPTIONS.queries], ds_layout)
    dq_blocks, dq_empty = allocate(dq_sum, 2), barriers(2, 1)
    k_ring = Ring(allocate(k, 2), None, barriers(2, 2))
    v_ring = Ring(allocate(v, 2), None, barriers(1, 2))
    q_ring = Ring(q_blocks, barriers(OPTIONS.q_stages, 1), None)
    dout_ring = Ring(dout_blocks, barriers(OPTIONS.dout_stages, 1), None)
    tickets = ring_of_tickets(4)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout, base, delta)
    of_base, of_delta = allocate(base, OPTIONS.q_stages), allocate(delta, OPTIONS.dout_stages)
    rings = Rings(q_ring, k_ring, v_ring, dout_ring, of_base, of_delta)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(turns_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, OPTIONS.keys)
    gl.warp_specialize(
        [
            (differentiate, (0, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, OPTIONS)),
            (differentiate, (1, dk, dv, rings, ds_blocks, dq_blocks, dq_empty, tickets, OPTIONS)),
            (fetch, (arrays, rings, tickets, t, tiles, turns_ptr, tile_list_ptr, sizes, OPTIONS, True)),
            (add, (0, dq_sum, turns_ptr, dq_blocks, dq_empty, tickets, sizes.tiles_q, OPTIONS)),
            (add, (1, dq_sum, turns_ptr, dq_blocks, dq_empty, tickets, sizes.tiles_q, OPTIONS)),
        ],
        [WARPS, 1, 1, 1],
        [OPTIONS.registers, FEW_REGISTERS, FEW_REGISTERS, FEW_REGISTERS],
    )
