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

from .products import WARPS, anew, matrix
from .steps import STEPS, at_border, base_of, deltas_of, differences, keys_of, probabilities, steps_unmasked
from .tickets import let_go, parity_of, read, slot_of
from .tiles import at_step


@gluon.jit
def products_of_step(n, W: gl.constexpr, k_s, q_s, none, q_full, STAGES: gl.constexpr):
    """Begin the products of the keys of group W with the queries of step n, when these are there."""
    ROWS: gl.constexpr = none.shape[0]
    slot = slot_of(n, STAGES)
    mbarrier.wait(q_full.index(slot), parity_of(n, STAGES))
    k = matrix(k_s.index(anew(0))).slice(W * ROWS, ROWS)
    return warpgroup_mma(k, matrix(q_s.index(slot)).permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def queries_of_step(n, W: gl.constexpr, k_s, ds_s, none_q, ds_full):
    """Begin the products of ds of step n with group W's half of the columns of keys, when both have left their ds."""
    HALF: gl.constexpr = none_q.shape[1]
    place = slot_of(n, 2)
    mbarrier.wait(ds_full.index(place), parity_of(n, 2))
    k_half = matrix(k_s.index(anew(0))).slice(W * HALF, HALF, dim=1)
    return warpgroup_mma(ds_s.index(place).permute((1, 0)), k_half, none_q, use_acc=False, is_async=True)


@gluon.jit
def leave_part(part, n, W: gl.constexpr, dq_s, ds_empty, dq_full, dq_empty):
    """Leave the columns of group W of dq of step n to the warps that add; the products have read ds."""
    HALF: gl.constexpr = part.shape[1]
    place = slot_of(n, 2)
    mbarrier.arrive(ds_empty.index(place))
    mbarrier.wait(dq_empty.index(place), parity_of(n, 2) ^ 1)
    matrix(dq_s.index(place)).slice(W * HALF, HALF, dim=1).store(part)
    fence_async_shared()
    mbarrier.arrive(dq_full.index(place))


@gluon.jit
def differ_by_keys(
    W: gl.constexpr, dk, dv, memory, barriers, sums, tickets, n, turn, SIDES: gl.constexpr,
    FACTORS: gl.constexpr, SCALE: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr,
    STAGES: gl.constexpr, AHEAD: gl.constexpr, LISTED: gl.constexpr,
):  # fmt: skip
    """dk and dv of one half, W, of the keys; half of the columns of dq, from all keys. Pairs are (keys, queries).

    dq of a step, which needs the ds of both groups, is computed in the step after it: so a group that is ahead of the
    other does not wait, and one has its exponentials while the tensor cores compute products of the other.

    n: of the program's steps; returned is the one after the tile.
    """
    q_s, k_s, v_s, dout_s, base_s, delta_s = memory
    k_empty, v_empty, q_full, q_empty, dout_full, dout_empty = barriers
    ds_s, dq_s, ds_full, ds_empty, dq_full, dq_empty = sums
    TYPE: gl.constexpr = q_s.dtype
    R: gl.constexpr = KEYS // 2
    D: gl.constexpr = k_s.shape[len(k_s.shape) - 1]
    V: gl.constexpr = v_s.shape[len(v_s.shape) - 1]
    HALF: gl.constexpr = D // 2
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, QUERIES, 16])
    OF_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, D, 16])
    OF_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, V, 16])
    OF_Q: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, HALF, 16])
    LEFT_K: gl.constexpr = gl.DotOperandLayout(0, OF_K, 2)
    LEFT_V: gl.constexpr = gl.DotOperandLayout(0, OF_V, 2)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([R, QUERIES], gl.float32, S)
    none_q = gl.zeros([QUERIES, HALF], gl.float32, OF_Q)
    total_k = gl.zeros([R, D], gl.float32, OF_K)
    total_v = gl.zeros([R, V], gl.float32, OF_V)
    begin, end = n, n + SHARE * read(tickets, turn, STEPS)
    s = none
    if AHEAD:
        if end > n:
            s = warpgroup_mma_wait(0, deps=[products_of_step(n, W, k_s, q_s, none, q_full, STAGES[0])])
    first, until = steps_unmasked(end, tickets, turn, SIDES, SHARE, KEYS, QUERIES, LISTED)
    while n < end:
        border = at_border(n, first, until, SIDES, LISTED)
        q_at, dout_at, place = slot_of(n, STAGES[0]), slot_of(n, STAGES[1]), slot_of(n, 2)
        q_tile, dout_tile = matrix(q_s.index(q_at)), matrix(dout_s.index(dout_at))
        if not AHEAD:
            s = products_of_step(n, W, k_s, q_s, none, q_full, STAGES[0])
        mbarrier.wait(dout_full.index(dout_at), parity_of(n, STAGES[1]))
        dp = warpgroup_mma(matrix(v_s.index(anew(W))), dout_tile.permute((1, 0)), none, use_acc=False, is_async=True)
        base = base_of(base_s, q_at, COLUMN)
        if AHEAD:
            # The last step computes its own once more, so that no product is in a branch.
            next_s = products_of_step(gl.minimum(n + 1, end - 1), W, k_s, q_s, none, q_full, STAGES[0])
        else:
            s = warpgroup_mma_wait(1, deps=[s])
        p = probabilities(s, base, border, W * R, end - n, tickets, turn, SIDES, FACTORS, SHARE, LISTED)
        # This product reads p, so that the assembler leaves the exponentials before the wait for dp.
        left = gl.convert_layout(p.to(TYPE), LEFT_V, assert_trivial=True)
        total_v = warpgroup_mma(left, dout_tile, total_v, is_async=True)
        delta = deltas_of(delta_s.index(dout_at), border, end - n, tickets, turn, SHARE, LISTED, COLUMN)
        dp = warpgroup_mma_wait(2 if AHEAD else 1, deps=[dp])
        if FACTORS[0] is not None:
            base = base_of(base_s, q_at, COLUMN)
        ds = differences(p, dp, base[None, :], delta[None, :], FACTORS).to(TYPE)
        mbarrier.wait(ds_empty.index(place), parity_of(n, 2) ^ 1)
        ds_s.index(place).slice(W * R, R).store(ds)
        fence_async_shared()
        mbarrier.arrive(ds_full.index(place))
        # The first step computes its own, and so does the second one, so that no product is in a branch.
        part = queries_of_step(gl.maximum(n - 1, begin), W, k_s, ds_s, none_q, ds_full)
        total_k = warpgroup_mma(gl.convert_layout(ds, LEFT_K, assert_trivial=True), q_tile, total_k, is_async=True)
        if AHEAD:
            part, total_v, s = warpgroup_mma_wait(1, deps=[part, total_v, next_s])
        else:
            part, total_v = warpgroup_mma_wait(1, deps=[part, total_v])
        mbarrier.arrive(dout_empty.index(dout_at))
        if n > begin:
            leave_part(part, n - 1, W, dq_s, ds_empty, dq_full, dq_empty)
        total_k = warpgroup_mma_wait(0, deps=[total_k])
        mbarrier.arrive(q_empty.index(q_at))
        n += 1
    if end > begin:
        part = warpgroup_mma_wait(0, deps=[queries_of_step(end - 1, W, k_s, ds_s, none_q, ds_full)])
        leave_part(part, end - 1, W, dq_s, ds_empty, dq_full, dq_empty)
    mbarrier.arrive(k_empty)
    batch, first_k, at, keys, group = keys_of(tickets, turn)
    # Only this group's products read its half of v; dk takes the place of ds once those of both groups are done.
    matrix(v_s.index(W)).store(total_v.to(TYPE))
    fence_async_shared()
    tma_store(dv, at_step(dv, batch, first_k, at + W * R, keys, group), v_s.index(W))
    mbarrier.wait(k_empty, turn & 1)
    dk_s = ds_s.index(W)._reinterpret(TYPE, dk.block_shape, dk.layout)
    matrix(dk_s).store((total_k * SCALE).to(TYPE))
    fence_async_shared()
    tma_store(dk, at_step(dk, batch, first_k, at + W * R, keys, group), dk_s)
    tma.store_wait(0)
    # v comes after both groups' copies, and ds is computed from it: no copy reads the places that ds is written to.
    mbarrier.arrive(v_empty)
    let_go(tickets, turn)
    return n
