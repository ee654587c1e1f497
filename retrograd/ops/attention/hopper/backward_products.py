"""Attention, backward, on Hopper: a tile of keys whose halves two groups of warps take. Symbols: ../README.md."""

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
from retrograd.core.kernels.numerics import forget
from retrograd.core.kernels.rings import acquire, release, stage_of, wait_full

from .schedule import at_step
from .scores import base_of, deltas_from, differences_from, probabilities
from .tickets import of_keys
from .walk import at_border, keys_of, steps_unmasked
from .wgmma import add_left, in_order_of_sums, matrix, of_products, over_columns, pieces


@gluon.jit
def scores_of_step(n, W: gl.constexpr, rings, none, SIZE: gl.constexpr):
    """Start the products of the keys of group W with the queries of step n, when these are there."""
    ROWS: gl.constexpr = none.shape[0]
    stage = stage_of(n, rings.q.full.shape[0])
    wait_full(rings.q, n)
    k = matrix(rings.k.blocks.index(forget(gl.to_tensor(0)))).slice(W * ROWS, ROWS)
    return over_columns(k, matrix(rings.q.blocks.index(stage)), none, SIZE)


@gluon.jit
def dq_of_step(n, W: gl.constexpr, k, ds, none_q):
    """Start the products of ds of step n with group W's half of the columns of keys, when both groups have left ds."""
    HALF: gl.constexpr = none_q.shape[1]
    stage = stage_of(n, 2)
    wait_full(ds, n)
    k_half = matrix(k.blocks.index(forget(gl.to_tensor(0)))).slice(W * HALF, HALF, dim=1)
    return warpgroup_mma(ds.blocks.index(stage).permute((1, 0)), k_half, none_q, use_acc=False, is_async=True)


@gluon.jit
def hand_over(part, n, W: gl.constexpr, ds, dq):
    """Leave the columns of group W of dq of step n to the warps that add; the products have read ds."""
    HALF: gl.constexpr = part.shape[1]
    release(ds, n)
    stage = acquire(dq, n)
    matrix(dq.blocks.index(stage)).slice(W * HALF, HALF, dim=1).store(in_order_of_sums(part))
    fence_async_shared()
    mbarrier.arrive(dq.full.index(stage))


@gluon.jit
def store_dk_dv(W: gl.constexpr, total_k, total_v, dk, dv, rings, ds_blocks, tickets, number, OPTIONS: gl.constexpr):
    """Store dk and dv of one half, W, of the keys, and release k, v and the ticket."""
    TYPE: gl.constexpr = rings.q.blocks.dtype
    R: gl.constexpr = OPTIONS.keys // 2
    release(rings.k, number)
    batch, first_k, at, keys, group = keys_of(tickets, number)
    # Only this group's products read its half of v; dk takes the place of ds once those of both groups are done.
    matrix(rings.v.blocks.index(W)).store(total_v.to(TYPE))
    fence_async_shared()
    tma_store(dv, at_step(dv, batch, first_k, at + W * R, keys, group), rings.v.blocks.index(W))
    acquire(rings.k, number + 1)
    dk_s = ds_blocks.index(W)._reinterpret(TYPE, dk.block_shape, dk.layout)
    matrix(dk_s).store((total_k * OPTIONS.scale).to(TYPE))
    fence_async_shared()
    tma_store(dk, at_step(dk, batch, first_k, at + W * R, keys, group), dk_s)
    tma.store_wait(0)
    # v comes after both groups' copies, and ds is computed from it: no copy reads the blocks that ds is written to.
    release(rings.v, number)
    release(tickets, number)


@gluon.jit
def differentiate_keys(W: gl.constexpr, dk, dv, rings, ds_ring, dq_ring, tickets, n, number, OPTIONS: gl.constexpr):
    """dk and dv of one half, W, of the keys; half of the columns of dq, from all keys. Pairs are (keys, queries).

    dq of a step, which needs the ds of both groups, is computed in the step after it: so a group that is ahead of the
    other does not wait, and one has its exponentials while the tensor cores compute products of the other.

    n: of the program's steps; returned is the one after the tile.
    """
    QUERIES: gl.constexpr = OPTIONS.queries
    TYPE: gl.constexpr = rings.q.blocks.dtype
    R: gl.constexpr = OPTIONS.keys // 2
    D: gl.constexpr = rings.k.blocks.shape[len(rings.k.blocks.shape) - 1]
    V: gl.constexpr = rings.v.blocks.shape[len(rings.v.blocks.shape) - 1]
    HALF: gl.constexpr = D // 2
    S: gl.constexpr = of_products(QUERIES)
    OF_K: gl.constexpr = of_products(D)
    OF_V: gl.constexpr = of_products(V)
    OF_Q: gl.constexpr = of_products(HALF)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([R, QUERIES], gl.float32, S)
    none_q = gl.zeros([QUERIES, HALF], gl.float32, OF_Q)
    total_k = gl.zeros([R, D], gl.float32, OF_K)
    total_v = gl.zeros([R, V], gl.float32, OF_V)
    begin, end = n, n + OPTIONS.share * of_keys(tickets, number, "steps")
    first, until = steps_unmasked(end, tickets, number, OPTIONS)
    while n < end:
        border = at_border(n, first, until, OPTIONS)
        q_stage, dout_stage, stage = stage_of(n, OPTIONS.q_stages), stage_of(n, OPTIONS.dout_stages), stage_of(n, 2)
        q_tile, dout_tile = matrix(rings.q.blocks.index(q_stage)), matrix(rings.dout.blocks.index(dout_stage))
        s = scores_of_step(n, W, rings, none, OPTIONS.size)
        wait_full(rings.dout, n)
        v = matrix(rings.v.blocks.index(forget(gl.to_tensor(W))))
        dp = over_columns(v, dout_tile, none, OPTIONS.value_size)
        base = base_of(rings.base, q_stage, 0, QUERIES, COLUMN)
        s = warpgroup_mma_wait(pieces(OPTIONS.value_size), deps=[s])
        p = probabilities(s, base, border, W * R, 0, end - n, tickets, number, OPTIONS)
        # This product reads p, so that the assembler leaves the exponentials before the wait for dp.
        total_v = add_left(p.to(TYPE), dout_tile, total_v)
        delta = deltas_from(0, p, border, n, end, rings, tickets, number, OPTIONS)
        dp = warpgroup_mma_wait(1, deps=[dp])
        ds = differences_from(0, p, dp, delta, n, rings, OPTIONS)
        acquire(ds_ring, n)
        ds_ring.blocks.index(stage).slice(W * R, R).store(ds)
        fence_async_shared()
        mbarrier.arrive(ds_ring.full.index(stage))
        # The first step computes its own, and so does the second one, so that no product is in a branch.
        part = dq_of_step(gl.maximum(n - 1, begin), W, rings.k, ds_ring, none_q)
        total_k = add_left(ds, q_tile, total_k)
        part, total_v = warpgroup_mma_wait(1, deps=[part, total_v])
        release(rings.dout, n)
        if n > begin:
            hand_over(part, n - 1, W, ds_ring, dq_ring)
        total_k = warpgroup_mma_wait(0, deps=[total_k])
        release(rings.q, n)
        n += 1
    if end > begin:
        part = warpgroup_mma_wait(0, deps=[dq_of_step(end - 1, W, rings.k, ds_ring, none_q)])
        hand_over(part, end - 1, W, ds_ring, dq_ring)
    store_dk_dv(W, total_k, total_v, dk, dv, rings, ds_ring.blocks, tickets, number, OPTIONS)
    return n
