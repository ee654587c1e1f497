"""`back` where each channel of K has a decay of its own. Symbols: ../../README.md.

    X^T  = G k_rest^T                              (values, steps)
    dD^T = X^T beta + dO^T M
    dV^T = dD^T T
    G    = G e^y_end + (scale dO^T) q_grow - dV^T k_grow

A block's rows come in three rings, in the order in which they are needed: dO and M a block ahead, k_rest and T, and at
last q_grow and k_grow, which need no third stage.
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

from retrograd.core.kernels.gluon import block_barrier, tma_load, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.rings import acquire, full_and_empty, release, stage_of, wait_full
from retrograd.core.kernels.sequences import rows_at
from retrograd.core.kernels.warpgroups import products, rounded, vector

from ..arrays import BackPointers, Leaving, Walks
from ..blocks import HALF, UNIT, C, K, clear_outside, scaled
from ..walks import begin_state, end_state, rows_out, walk_of
from .blocks import PLANES, ends_of


class BackOptions(NamedTuple):
    """Stages of the rings: of dO and M; of k_rest, T and planes; of q_grow and k_grow."""

    AHEAD: int
    STAGES: int
    GROWN: int
    AGAIN: int = 0  # for `walk_of`: all blocks of a sequence
    KEPT: int = 1


class BackArrays(NamedTuple):
    """Descriptors of what the walk back reads."""

    q_grow: Any
    k_grow: Any
    k_rest: Any
    dout: Any
    planes: Any
    inverse: Any
    scores: Any


class BackRings(NamedTuple):
    """Shared memory, in the order of `BackArrays`, and two mbarriers for each stage of each ring."""

    q_grow: Any
    k_grow: Any
    k_rest: Any
    dout: Any
    planes: Any
    inverse: Any
    scores: Any
    ahead: Any
    own: Any
    grown: Any


class Stages(NamedTuple):
    """The mbarriers of a ring."""

    full: Any
    empty: Any


@gluon.jit
def stages_of(STAGES: gl.constexpr):
    """A ring's mbarriers."""
    full, empty = full_and_empty(STAGES, 1)
    return Stages(full, empty)


@gluon.jit
def fetch(arrays, rings, walks, OPTIONS: gl.constexpr):
    """Copy block after block to shared memory, from the last on."""
    walk = walk_of(walks, OPTIONS)
    for i in range(walk.count):
        c = walk.count - 1 - i
        of_head = (walk.slot + c) * walks.H + walk.head
        stage = acquire(rings.ahead, i)
        ready = rings.ahead.full.index(stage)
        mbarrier.expect(ready, arrays.dout.block_type.nbytes + arrays.scores.block_type.nbytes)
        tma_load(arrays.dout, [c * C, walk.column], ready, rings.dout.index(stage))
        tma_load(arrays.scores, [of_head * C, 0], ready, rings.scores.index(stage))
        stage = acquire(rings.own, i)
        ready = rings.own.full.index(stage)
        mbarrier.expect(
            ready,
            arrays.k_rest.block_type.nbytes + arrays.planes.block_type.nbytes + arrays.inverse.block_type.nbytes,
        )
        tma_load(arrays.k_rest, [c * C, 0], ready, rings.k_rest.index(stage))
        tma_load(arrays.planes, [of_head * (PLANES * C)], ready, rings.planes.index(stage))
        tma_load(arrays.inverse, [of_head * C, 0], ready, rings.inverse.index(stage))
        stage = acquire(rings.grown, i)
        ready = rings.grown.full.index(stage)
        mbarrier.expect(ready, arrays.q_grow.block_type.nbytes + arrays.k_grow.block_type.nbytes)
        tma_load(arrays.q_grow, [c * C, 0], ready, rings.q_grow.index(stage))
        tma_load(arrays.k_grow, [c * C, 0], ready, rings.k_grow.index(stage))


@gluon.jit
def carry(pointers, rings, leaving, scale, walks, OPTIONS: gl.constexpr):
    """The gradient of the state; what leaves are it, for every block, and dv."""
    DTYPE: gl.constexpr = pointers.dv.dtype.element_ty
    X: gl.constexpr = products(C)  # (value, step)
    STATE: gl.constexpr = products(K)  # (value, key)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, X, 2)
    STATE_LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    STEP: gl.constexpr = gl.SliceLayout(0, X)
    H = walks.H
    walk = walk_of(walks, OPTIONS)
    out = rows_out(pointers.dv, walk, walks, leaving.rows)
    zero = gl.zeros([HALF, C], gl.float32, X)
    gradient = begin_state(pointers.start, walk, H, STATE, OPTIONS)
    if walk.count > 0:
        wait_full(rings.ahead, 0)
        dout = rings.dout.index(0).permute((1, 0)).load(LEFT)
        ahead = warpgroup_mma(dout, rings.scores.index(0), zero, use_acc=False, is_async=True)
        ahead = warpgroup_mma_wait(0, deps=[ahead])
        for i in range(walk.count):
            c = walk.count - 1 - i
            stage = stage_of(i, OPTIONS.STAGES)
            grown_stage = stage_of(i, OPTIONS.GROWN)
            planes = rings.planes.index(stage)
            low = rounded(gradient, DTYPE)
            left = gl.convert_layout(low, LEFT, assert_trivial=True)
            wait_full(rings.own, i)
            rest = rings.k_rest.index(stage).permute((1, 0))
            x = warpgroup_mma(left, rest, zero, use_acc=False, is_async=True)
            driven = scaled(dout, gl.full([C], scale, gl.float32, gl.SliceLayout(0, LEFT)))
            driven = gl.convert_layout(driven, STATE_LEFT, assert_trivial=True)
            beta = vector(planes, 2, STEP)
            # This stage has been read: its last reader was the product of the block before.
            release(rings.ahead, i)
            # Of the last block once more, and not used.
            following = gl.minimum(i + 1, walk.count - 1)
            following_stage = stage_of(following, OPTIONS.AHEAD)
            wait_full(rings.ahead, following)
            dout = rings.dout.index(following_stage).permute((1, 0)).load(LEFT)
            x = warpgroup_mma_wait(0, deps=[x])
            dd = gl.convert_layout(rounded(x * beta[None, :] + ahead, DTYPE), LEFT, assert_trivial=True)
            dv = warpgroup_mma(dd, rings.inverse.index(stage), zero, use_acc=False, is_async=True)
            gradient = gradient * ends_of(planes.slice(0, K), gl.SliceLayout(0, STATE))[None, :]
            wait_full(rings.grown, i)
            gradient = warpgroup_mma(driven, rings.q_grow.index(grown_stage), gradient, is_async=True)
            dv = warpgroup_mma_wait(1, deps=[dv])
            driven = gl.convert_layout(rounded(-dv, DTYPE), STATE_LEFT, assert_trivial=True)
            gradient = warpgroup_mma(driven, rings.k_grow.index(grown_stage), gradient, is_async=True)
            scores = rings.scores.index(following_stage)
            ahead = warpgroup_mma(dout, scores, zero, use_acc=False, is_async=True)
            # What leaves is stored while these products are under way, the longest.
            dv = rounded(dv, DTYPE)
            tma.store_wait(0)
            leaving.states.store(low)
            leaving.rows.permute((1, 0)).store(dv)
            fence_async_shared()
            block_barrier()
            of_head = (walk.slot + c) * H + walk.head
            tma_store(pointers.states, [of_head * K + walk.column, 0], leaving.states)
            tma_store(out, [c * C, walk.column], leaving.rows)
            release(rings.own, i)
            gradient, ahead = warpgroup_mma_wait(0, deps=[gradient, ahead])
            release(rings.grown, i)
    end_state(pointers.last, gradient, walk, H, STATE)
    if walks.cu_seqlens is not None:
        clear_outside(pointers.dv + walk.column, walk, walks, walk.head, H, HALF)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["dout", "call"])
def back(
    q_grow_ptr,
    k_grow_ptr,
    k_rest_ptr,
    dout,
    planes,
    inverse,
    scores,
    start_ptr,
    cu_seqlens_ptr,
    dv_ptr,
    leaving,
    last_ptr,
    call,
    OPTIONS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """From the gradient of the final state: dv, leaving (slots H V, K) the gradient of the state that leaves a block,
    last that of the initial state. q_grow, k_grow, k_rest (B T, H, K).
    """
    DTYPE: gl.constexpr = q_grow_ptr.dtype.element_ty
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, K], DTYPE)
    rings = BackRings(
        gl.allocate_shared_memory(DTYPE, [OPTIONS.GROWN, C, K], WIDE),
        gl.allocate_shared_memory(DTYPE, [OPTIONS.GROWN, C, K], WIDE),
        gl.allocate_shared_memory(DTYPE, [OPTIONS.STAGES, C, K], WIDE),
        gl.allocate_shared_memory(DTYPE, [OPTIONS.AHEAD, C, HALF], PANEL),
        gl.allocate_shared_memory(gl.float32, [OPTIONS.STAGES, PLANES * C], gl.NVMMASharedLayout(0, 32, rank=1)),
        gl.allocate_shared_memory(DTYPE, [OPTIONS.STAGES, C, C], PANEL),
        gl.allocate_shared_memory(DTYPE, [OPTIONS.AHEAD, C, C], PANEL),
        stages_of(OPTIONS.AHEAD),
        stages_of(OPTIONS.STAGES),
        stages_of(OPTIONS.GROWN),
    )
    leaving_s = Leaving(
        gl.allocate_shared_memory(DTYPE, [HALF, K], WIDE), gl.allocate_shared_memory(DTYPE, [C, HALF], PANEL)
    )
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    own = walk_of(walks, OPTIONS)
    steps = gl.maximum(own.length, 1)
    H = call.H
    at = ((own.row * call.T + own.first) * H + own.head) * K
    dout_rows = rows_at(dout, own.row, own.first, own.head, UNIT)
    # Descriptors of the sequence alone: steps past its end are read as zeros.
    arrays = BackArrays(
        tma.make_tensor_descriptor(q_grow_ptr + at, [steps, K], [H * K, 1], [C, K], WIDE),
        tma.make_tensor_descriptor(k_grow_ptr + at, [steps, K], [H * K, 1], [C, K], WIDE),
        tma.make_tensor_descriptor(k_rest_ptr + at, [steps, K], [H * K, 1], [C, K], WIDE),
        tma.make_tensor_descriptor(dout_rows.pointer, [steps, K], [dout.step * UNIT, 1], [C, HALF], PANEL),
        planes,
        inverse,
        scores,
    )
    pointers = BackPointers(start_ptr, dv_ptr, leaving, last_ptr)
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [(carry, (pointers, rings, leaving_s, call.scale, walks, OPTIONS)), (fetch, (arrays, rings, walks, OPTIONS))],
        [1],
        [FETCH_REGISTERS],
    )
