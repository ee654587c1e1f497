"""Attention, backward, on Hopper: a tile of keys whose columns two groups of warps share. Symbols: ../README.md.

For heads so wide that a group cannot hold the dk and dv of half of a tile's keys. Both groups have all keys: group 0
computes p, group 1 computes dp, and with p from shared memory ds, which both take from there. Each adds half of the
columns to dk and dv, and has those of dq, in two parts, so that a part is on its way while the next one is computed.
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

PARTS = gl.constexpr(4)  # of dq


@gluon.constexpr_function
def column_of(W, part, array):
    """The first column of a part of group W's columns of dq."""
    return (W * (PARTS // 2) + part) * array.block_shape[-1]


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
    SCALE: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr,
    LISTED: gl.constexpr,
):  # fmt: skip
    """Half W of the columns of dk, dv and dq. Pairs are (keys, queries). n: as `differ_by_keys`."""
    q_s, k_s, v_s, dout_s, base_s, delta_s, p_s, ds_s, dq_s = memory
    k_empty, v_empty, q_full, q_empty, dout_full, dout_empty, p_full, ds_full, dq_full, dq_empty, walked = barriers
    TYPE: gl.constexpr = q_s.dtype
    HALF: gl.constexpr = k_s.shape[len(k_s.shape) - 1] // 2
    HALF_V: gl.constexpr = v_s.shape[len(v_s.shape) - 1] // 2
    PART: gl.constexpr = dq_s.shape[len(dq_s.shape) - 1]
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, QUERIES, 16])
    OF_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, HALF, 16])
    OF_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, HALF_V, 16])
    OF_Q: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PART, 16])
    LEFT_V: gl.constexpr = gl.DotOperandLayout(0, OF_V, 2)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([KEYS, QUERIES], gl.float32, S)
    none_q = gl.zeros([QUERIES, PART], gl.float32, OF_Q)
    k, v, ds_tile = matrix(k_s), matrix(v_s.index(0)), ds_s.index(0)
    k_half, v_half = k.slice(W * HALF, HALF, dim=1), v.slice(W * HALF_V, HALF_V, dim=1)
    total_k = gl.zeros([KEYS, HALF], gl.float32, OF_K)
    total_v = gl.zeros([KEYS, HALF_V], gl.float32, OF_V)
    end = n + SHARE * read(tickets, turn, STEPS)
    first_n, until = steps_unmasked(end, tickets, turn, SIDES, SHARE, KEYS, QUERIES, LISTED)
    while n < end:
        border = at_border(n, first_n, until, SIDES, LISTED)
        q_at, dout_at = slot_of(n, STAGES[0]), slot_of(n, STAGES[1])
        q_tile, dout_tile = matrix(q_s.index(q_at)), matrix(dout_s.index(dout_at))
        dout_half = dout_tile.slice(W * HALF_V, HALF_V, dim=1)
        mbarrier.wait(q_full.index(q_at), parity_of(n, STAGES[0]))
        if W == 0:
            s = warpgroup_mma(k, q_tile.permute((1, 0)), none, use_acc=False, is_async=True)
            base = base_s.index(q_at).reshape([QUERIES]).load(COLUMN)
            s = warpgroup_mma_wait(0, deps=[s])
            p = probabilities(s, base, border, 0, end - n, tickets, turn, SIDES, FACTORS, SHARE, LISTED)
            # Group 1 has read the p before: this group has waited for its ds.
            p_s.store(p)
            mbarrier.arrive(p_full)
            mbarrier.wait(dout_full.index(dout_at), parity_of(n, STAGES[1]))
            left = gl.convert_layout(p.to(TYPE), LEFT_V, assert_trivial=True)
            total_v = warpgroup_mma(left, dout_half, total_v, is_async=True)
        else:
            mbarrier.wait(dout_full.index(dout_at), parity_of(n, STAGES[1]))
            dp = warpgroup_mma(v, dout_tile.permute((1, 0)), none, use_acc=False, is_async=True)
            delta = deltas_of(delta_s.index(dout_at), border, end - n, tickets, turn, SHARE, LISTED, COLUMN)
            dp = warpgroup_mma_wait(0, deps=[dp])
            mbarrier.wait(p_full, n & 1)
            p = p_s.load(S)
            left = gl.convert_layout(p.to(TYPE), LEFT_V, assert_trivial=True)
            total_v = warpgroup_mma(left, dout_half, total_v, is_async=True)
            # No product of the step before reads ds any more: p comes from group 0 behind its own.
            base = base_s.index(q_at).reshape([QUERIES]).load(COLUMN)
            ds_tile.store(differences(p, dp, base, delta, FACTORS).to(TYPE))
            fence_async_shared()
            mbarrier.arrive(ds_full.index(0))
        mbarrier.wait(ds_full.index(0), n & 1)
        ds_of_queries = ds_tile.permute((1, 0))
        first = warpgroup_mma(ds_of_queries, k_half.slice(0, PART, dim=1), none_q, use_acc=False, is_async=True)
        q_half = q_tile.slice(W * HALF, HALF, dim=1)
        total_k = warpgroup_mma(ds_tile, q_half, total_k, is_async=True)
        first, total_v = warpgroup_mma_wait(1, deps=[first, total_v])
        mbarrier.arrive(dout_empty.index(dout_at))
        store_part(first, 2 * n, W, dq_s, dq_full, dq_empty)
        second = warpgroup_mma(ds_of_queries, k_half.slice(PART, PART, dim=1), none_q, use_acc=False, is_async=True)
        total_k, second = warpgroup_mma_wait(0, deps=[total_k, second])
        mbarrier.arrive(q_empty.index(q_at))
        store_part(second, 2 * n + 1, W, dq_s, dq_full, dq_empty)
        n += 1
    mbarrier.arrive(walked)
    mbarrier.wait(walked, 0)
    k_half.store((total_k * SCALE).to(TYPE))
    v_half.store(total_v.to(TYPE))
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
