"""What goes in sequence backward, for Hopper: the gradients of the states, and of v. Symbols: ../README.md.

As walk.py, mirrored, from the last block on; G is the gradient of the state that leaves a block:

    X^T  = G K^T                                   (values, steps)
    dD^T = X^T beta e^(y_end - y) + dO^T M
    dV^T = dD^T T
    G    = e^y_end G + (scale e^y dO^T) Q - (e^y dV^T) K

dO^T M is computed a block ahead, and the product with Q while dV waits for the chain.
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

from retrograd.core.kernels.gluon import block_barrier, tma_load, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.rings import acquire, full_and_empty, release, stage_of, wait_full
from retrograd.core.kernels.sequences import rows_at
from retrograd.core.kernels.warpgroups import end_of, products, rounded, vector

from .arrays import BackArrays, BackPointers, BackRing, Leaving, Walks
from .blocks import HALF, PLANES, UNIT, C, K, clear_outside, scaled
from .walks import begin_state, end_state, rows_out, walk_of


@gluon.jit
def fetch(arrays, ring, walks, OPTIONS: gl.constexpr):
    """Copy block after block to shared memory, from the last on."""
    walk = walk_of(walks, OPTIONS)
    BYTES: gl.constexpr = (
        arrays.q.block_type.nbytes
        + arrays.k.block_type.nbytes
        + arrays.dout.block_type.nbytes
        + arrays.planes.block_type.nbytes
        + arrays.inverse.block_type.nbytes
        + arrays.scores.block_type.nbytes
    )
    for i in range(walk.count):
        c = walk.count - 1 - i
        stage = acquire(ring, i)
        ready = ring.full.index(stage)
        mbarrier.expect(ready, BYTES)
        of_head = (walk.slot + c) * walks.H + walk.head
        tma_load(arrays.dout, [c * C, walk.column], ready, ring.dout.index(stage))
        tma_load(arrays.scores, [of_head * C, 0], ready, ring.scores.index(stage))
        tma_load(arrays.k, [c * C, 0], ready, ring.k.index(stage))
        tma_load(arrays.planes, [of_head * (PLANES * C)], ready, ring.planes.index(stage))
        tma_load(arrays.inverse, [of_head * C, 0], ready, ring.inverse.index(stage))
        tma_load(arrays.q, [c * C, 0], ready, ring.q.index(stage))


@gluon.jit
def carry(pointers, ring, leaving, walks, OPTIONS: gl.constexpr):
    """The gradient of the state; what leaves are it, for every block, and dv."""
    DTYPE: gl.constexpr = pointers.dv.dtype.element_ty
    X: gl.constexpr = products(C)  # (value, step)
    STATE: gl.constexpr = products(K)  # (value, key)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, X, 2)
    STATE_LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    STEP: gl.constexpr = gl.SliceLayout(0, X)
    STAGES: gl.constexpr = OPTIONS.STAGES
    H = walks.H
    walk = walk_of(walks, OPTIONS)
    out = rows_out(pointers.dv, walk, walks, leaving.rows)
    zero = gl.zeros([HALF, C], gl.float32, X)
    gradient = begin_state(pointers.start, walk, H, STATE, OPTIONS)
    if walk.count > 0:
        wait_full(ring, 0)
        dout = ring.dout.index(0).permute((1, 0)).load(LEFT)
        ahead = warpgroup_mma(dout, ring.scores.index(0), zero, use_acc=False, is_async=True)
        ahead = warpgroup_mma_wait(0, deps=[ahead])
        for i in range(walk.count):
            c = walk.count - 1 - i
            stage = stage_of(i, STAGES)
            planes = ring.planes.index(stage)
            low = rounded(gradient, DTYPE)
            left = gl.convert_layout(low, LEFT, assert_trivial=True)
            k = ring.k.index(stage)
            x = warpgroup_mma(left, k.permute((1, 0)), zero, use_acc=False, is_async=True)
            driven = scaled(dout, vector(planes, 2, gl.SliceLayout(0, LEFT)))
            driven = gl.convert_layout(driven, STATE_LEFT, assert_trivial=True)
            rest = vector(planes, 0, STEP)
            # Of the last block once more, and not used.
            following = gl.minimum(i + 1, walk.count - 1)
            following_stage = stage_of(following, STAGES)
            wait_full(ring, following)
            dout = ring.dout.index(following_stage).permute((1, 0)).load(LEFT)
            x = warpgroup_mma_wait(0, deps=[x])
            dd = gl.convert_layout(rounded(x * rest[None, :] + ahead, DTYPE), LEFT, assert_trivial=True)
            dv = warpgroup_mma(dd, ring.inverse.index(stage), zero, use_acc=False, is_async=True)
            gradient = gradient * end_of(planes, 1, gl.SliceLayout(1, STATE))[:, None]
            grow = vector(planes, 1, STEP)
            gradient = warpgroup_mma(driven, ring.q.index(stage), gradient, is_async=True)
            dv = warpgroup_mma_wait(1, deps=[dv])
            driven = gl.convert_layout(rounded(dv * (-grow)[None, :], DTYPE), STATE_LEFT, assert_trivial=True)
            gradient = warpgroup_mma(driven, k, gradient, is_async=True)
            ahead = warpgroup_mma(dout, ring.scores.index(following_stage), zero, use_acc=False, is_async=True)
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
            gradient, ahead = warpgroup_mma_wait(0, deps=[gradient, ahead])
            release(ring, i)
    end_state(pointers.last, gradient, walk, H, STATE)
    if walks.cu_seqlens is not None:
        clear_outside(pointers.dv + walk.column, walk, walks, walk.head, H, HALF)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["q", "k", "dout", "call"])
def back(
    q,
    k,
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
    last that of the initial state.
    """
    DTYPE: gl.constexpr = k.pointer.dtype.element_ty
    STAGES: gl.constexpr = OPTIONS.STAGES
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, K], DTYPE)
    q_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, K], WIDE)
    k_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, K], WIDE)
    dout_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, HALF], PANEL)
    planes_s = gl.allocate_shared_memory(gl.float32, [STAGES, PLANES * C], gl.NVMMASharedLayout(0, 32, rank=1))
    inverse_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, C], PANEL)
    scores_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, C], PANEL)
    full, empty = full_and_empty(STAGES, 1)
    ring = BackRing(q_s, k_s, dout_s, planes_s, inverse_s, scores_s, full, empty)
    leaving_s = Leaving(
        gl.allocate_shared_memory(DTYPE, [HALF, K], WIDE), gl.allocate_shared_memory(DTYPE, [C, HALF], PANEL)
    )
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    own = walk_of(walks, OPTIONS)
    group = own.head // (call.H // call.G)
    steps = gl.maximum(own.length, 1)
    q_rows = rows_at(q, own.row, own.first, group, UNIT)
    k_rows = rows_at(k, own.row, own.first, group, UNIT)
    dout_rows = rows_at(dout, own.row, own.first, own.head, UNIT)
    # Descriptors of the sequence alone: steps past its end are read as zeros.
    arrays = BackArrays(
        tma.make_tensor_descriptor(q_rows.pointer, [steps, K], [q.step * UNIT, 1], [C, K], WIDE),
        tma.make_tensor_descriptor(k_rows.pointer, [steps, K], [k.step * UNIT, 1], [C, K], WIDE),
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
        [(carry, (pointers, ring, leaving_s, walks, OPTIONS)), (fetch, (arrays, ring, walks, OPTIONS))],
        [1],
        [FETCH_REGISTERS],
    )
