"""Attention, backward, on Hopper: a tile of keys whose columns two groups of warps share. Symbols: ../README.md.

For heads so wide that a group cannot hold the dk and dv of half of a tile's keys. Each group computes p and ds of all
keys and half of the queries of a step, and leaves them in shared memory. From those of both, it adds its columns to dk
and dv, and has its columns of dq, in parts, so that a part is on its way while the next one is computed.
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

from .forward import WARPS, matrix
from .steps import STEPS, at_border, deltas_of, differences, keys_of, probabilities, steps_unmasked
from .tickets import let_go, parity_of, read, slot_of
from .tiles import at_step

PART = gl.constexpr(64)  # columns of a part of dq


@gluon.constexpr_function
def whole(size):
    """The columns of heads of a size, in units of a part."""
    return -(-size // PART) * PART


@gluon.constexpr_function
def own_columns(W, columns, size):
    """How many of `columns` of a tile group W has: those of its half, or fewer where the heads end before."""
    half = columns // 2
    return min(half, whole(size) - W * half)


@gluon.constexpr_function
def pieces(size):
    """The products that add over the columns of heads: powers of two."""
    return 1 if whole(size) & (whole(size) - 1) == 0 else 2


@gluon.jit
def over_columns(a, b, none, SIZE: gl.constexpr):
    """Begin the products of rows of a and of b, over the columns of heads of a size."""
    if pieces(SIZE) == 1:
        return warpgroup_mma(a, b.permute((1, 0)), none, use_acc=False, is_async=True)
    else:
        FIRST: gl.constexpr = 2 * PART
        REST: gl.constexpr = whole(SIZE) - FIRST
        left, right = a.slice(0, FIRST, dim=1), b.slice(0, FIRST, dim=1)
        sums = warpgroup_mma(left, right.permute((1, 0)), none, use_acc=False, is_async=True)
        left, right = a.slice(FIRST, REST, dim=1), b.slice(FIRST, REST, dim=1)
        return warpgroup_mma(left, right.permute((1, 0)), sums, is_async=True)


@gluon.jit
def scores_of_step(W: gl.constexpr, n, k, q_s, none, q_full, MINE: gl.constexpr, STAGES: gl.constexpr, D: gl.constexpr):
    """Begin the products of keys with the group's queries of step n, when these are there."""
    slot = slot_of(n, STAGES)
    mbarrier.wait(q_full.index(slot), parity_of(n, STAGES))
    return over_columns(k, matrix(q_s.index(slot)).slice(W * MINE, MINE), none, D)


@gluon.jit
def store_part(part, use, W: gl.constexpr, dq_s, dq_full, dq_empty):
    """Leave a part of dq in the group's place, when the one before it has been copied from there."""
    mbarrier.wait(dq_empty.index(W), (use & 1) ^ 1)
    matrix(dq_s.index(W)).store(part)
    fence_async_shared()
    mbarrier.arrive(dq_full.index(W))


@gluon.jit
def differ_by_columns(
    W: gl.constexpr, dk, dv, memory, barriers, tickets, n, turn, SIDES: gl.constexpr, FACTORS: gl.constexpr,
    SCALE: gl.constexpr, SIZES: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr,
    STAGES: gl.constexpr, LISTED: gl.constexpr,
):  # fmt: skip
    """The columns of group W of dk, dv and dq. Pairs are (keys, queries). n: as `differ_by_keys`."""
    q_s, k_s, v_s, dout_s, base_s, delta_s, p_s, ds_s, dq_s = memory
    k_empty, v_empty, q_full, q_empty, dout_full, dout_empty, pairs_full, dq_full, dq_empty, walked = barriers
    TYPE: gl.constexpr = q_s.dtype
    D: gl.constexpr = SIZES[0]
    V: gl.constexpr = SIZES[1]
    HALF: gl.constexpr = k_s.shape[len(k_s.shape) - 1] // 2
    HALF_V: gl.constexpr = v_s.shape[len(v_s.shape) - 1] // 2
    OWN: gl.constexpr = own_columns(W, 2 * HALF, D)
    OWN_V: gl.constexpr = own_columns(W, 2 * HALF_V, V)
    OF_STEP: gl.constexpr = OWN // PART
    MINE: gl.constexpr = QUERIES // 2
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, MINE, 16])
    OF_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, OWN, 16])
    OF_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, OWN_V, 16])
    OF_Q: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PART, 16])
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([KEYS, MINE], gl.float32, S)
    none_q = gl.zeros([QUERIES, PART], gl.float32, OF_Q)
    k, v = matrix(k_s), matrix(v_s.index(0))
    k_own, v_own = k.slice(W * HALF, OWN, dim=1), v.slice(W * HALF_V, OWN_V, dim=1)
    total_k = gl.zeros([KEYS, OWN], gl.float32, OF_K)
    total_v = gl.zeros([KEYS, OWN_V], gl.float32, OF_V)
    end = n + SHARE * read(tickets, turn, STEPS)
    s = none
    if end > n:
        s = warpgroup_mma_wait(0, deps=[scores_of_step(W, n, k, q_s, none, q_full, MINE, STAGES[0], D)])
    first, until = steps_unmasked(end, tickets, turn, SIDES, SHARE, KEYS, QUERIES, LISTED)
    while n < end:
        border = at_border(n, first, until, SIDES, LISTED)
        q_at, dout_at, place = slot_of(n, STAGES[0]), slot_of(n, STAGES[1]), slot_of(n, 2)
        q_tile, dout_tile = matrix(q_s.index(q_at)), matrix(dout_s.index(dout_at))
        p_tile, ds_tile = p_s.index(place), ds_s.index(place)
        mbarrier.wait(dout_full.index(dout_at), parity_of(n, STAGES[1]))
        dp = over_columns(v, dout_tile.slice(W * MINE, MINE), none, V)
        base = base_s.index(q_at).reshape([QUERIES]).slice(W * MINE, MINE).load(COLUMN)
        p = probabilities(s, base, border, 0, W * MINE, end - n, tickets, turn, SIDES, FACTORS, SHARE, QUERIES, LISTED)
        p_tile.slice(W * MINE, MINE, dim=1).store(p.to(TYPE))
        delta = deltas_of(delta_s.index(dout_at), border, W * MINE, MINE, end - n, tickets, turn, SHARE, LISTED, COLUMN)
        dp = warpgroup_mma_wait(0, deps=[dp])
        ds_tile.slice(W * MINE, MINE, dim=1).store(differences(p, dp, base, delta, FACTORS).to(TYPE))
        fence_async_shared()
        # Of two places the other group cannot be two steps ahead, so a place is free again when it is used again.
        mbarrier.arrive(pairs_full.index(place))
        mbarrier.wait(pairs_full.index(place), parity_of(n, 2))
        total_v = warpgroup_mma(p_tile, dout_tile.slice(W * HALF_V, OWN_V, dim=1), total_v, is_async=True)
        ds_of_queries = ds_tile.permute((1, 0))
        part = warpgroup_mma(ds_of_queries, k_own.slice(0, PART, dim=1), none_q, use_acc=False, is_async=True)
        total_k = warpgroup_mma(ds_tile, q_tile.slice(W * HALF, OWN, dim=1), total_k, is_async=True)
        # The last step computes its own once more, so that no product is in a branch.
        s = scores_of_step(W, gl.minimum(n + 1, end - 1), k, q_s, none, q_full, MINE, STAGES[0], D)
        total_v = warpgroup_mma_wait(2 + pieces(D), deps=[total_v])
        mbarrier.arrive(dout_empty.index(dout_at))
        part = warpgroup_mma_wait(1 + pieces(D), deps=[part])
        store_part(part, n * OF_STEP, W, dq_s, dq_full, dq_empty)
        if OF_STEP == 2:
            part = warpgroup_mma(ds_of_queries, k_own.slice(PART, PART, dim=1), none_q, use_acc=False, is_async=True)
            total_k, s, part = warpgroup_mma_wait(0, deps=[total_k, s, part])
            mbarrier.arrive(q_empty.index(q_at))
            store_part(part, n * OF_STEP + 1, W, dq_s, dq_full, dq_empty)
        else:
            total_k, s = warpgroup_mma_wait(0, deps=[total_k, s])
            mbarrier.arrive(q_empty.index(q_at))
        n += 1
    mbarrier.arrive(walked)
    mbarrier.wait(walked, 0)
    k_own.store((total_k * SCALE).to(TYPE))
    v_own.store(total_v.to(TYPE))
    fence_async_shared()
    mbarrier.arrive(walked)
    mbarrier.wait(walked, 1)
    if W == 0:
        batch, first_k, at, keys, group = keys_of(tickets, turn)
        tma_store(dk, at_step(dk, batch, first_k, at, keys, group), k_s)
        tma_store(dv, at_step(dv, batch, first_k, at, keys, group), v_s.index(0))
        tma.store_wait(0)
        mbarrier.arrive(k_empty)
        mbarrier.arrive(v_empty)
    let_go(tickets, turn)
    return n
