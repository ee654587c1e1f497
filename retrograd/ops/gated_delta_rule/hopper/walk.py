"""What goes in sequence, for Hopper: the states, what is written, and the results. Symbols: ../README.md.

A program walks over the blocks of a sequence with half of a head's values, whose state stays in the registers of a
warpgroup; a warp copies. Everything is transposed, so that left operands are registers, and neither the state nor D
passes through shared memory on its way:

    X^T = S K^T                                    (values, steps)
    D^T = (V^T - e^y X^T) T^T
    S   = e^y_end S + (D^T beta e^(y_end - y)) K   (values, keys)
    O^T = scale e^y S Q^T + D^T M^T

Products for O fill the time in which the others' results are rounded. AGAIN: a program for so many blocks, from a kept
state on, finds what is written, and the states that are not kept.
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

from .arrays import Leaving, WalkArrays, WalkPointers, WalkRing, Walks
from .blocks import HALF, PLANES, UNIT, C, K, clear_outside, slot_entering, widened
from .walks import begin_state, clear_states, end_state, rows_out, states_out, walk_of


@gluon.jit
def fetch(arrays, ring, walks, OPTIONS: gl.constexpr):
    """Copy block after block to shared memory."""
    walk = walk_of(walks, OPTIONS)
    BYTES: gl.constexpr = (
        arrays.k.block_type.nbytes
        + arrays.v.block_type.nbytes
        + arrays.planes.block_type.nbytes
        + arrays.inverse.block_type.nbytes
        + (0 if OPTIONS.AGAIN else arrays.q.block_type.nbytes + arrays.scores.block_type.nbytes)
    )
    for i in range(walk.count):
        c = walk.begin + i
        stage = acquire(ring, i)
        ready = ring.full.index(stage)
        mbarrier.expect(ready, BYTES)
        of_head = (walk.slot + c) * walks.H + walk.head
        tma_load(arrays.k, [c * C, 0], ready, ring.k.index(stage))
        tma_load(arrays.planes, [of_head * (PLANES * C)], ready, ring.planes.index(stage))
        tma_load(arrays.v, [c * C, walk.column], ready, ring.v.index(stage))
        if not OPTIONS.AGAIN:
            tma_load(arrays.q, [c * C, 0], ready, ring.q.index(stage))
        tma_load(arrays.inverse, [of_head * C, 0], ready, ring.inverse.index(stage))
        if not OPTIONS.AGAIN:
            tma_load(arrays.scores, [of_head * C, 0], ready, ring.scores.index(stage))


@gluon.jit
def carry(pointers, ring, leaving, walks, OPTIONS: gl.constexpr, OVERLAP: gl.constexpr):
    """The state, and what leaves: every KEPT-th state and the results, or AGAIN the other states and D."""
    RESULTS: gl.constexpr = OPTIONS.AGAIN == 0
    DTYPE: gl.constexpr = pointers.out.dtype.element_ty
    X: gl.constexpr = products(C)  # (value, step)
    STATE: gl.constexpr = products(K)  # (value, key)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, X, 2)
    STATE_LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    STEP: gl.constexpr = gl.SliceLayout(0, X)
    H = walks.H
    walk = walk_of(walks, OPTIONS)
    out = rows_out(pointers.out, walk, walks, leaving.rows)
    states = states_out(pointers.states, walk, H, leaving.states, OPTIONS)
    zero = gl.zeros([HALF, C], gl.float32, X)
    state = begin_state(pointers.start, walk, H, STATE, OPTIONS)
    low = rounded(state, DTYPE)
    for i in range(walk.count):
        c = walk.begin + i
        stage = stage_of(i, OPTIONS.STAGES)
        planes = ring.planes.index(stage)
        left = gl.convert_layout(low, LEFT, assert_trivial=True)
        wait_full(ring, i)
        k = ring.k.index(stage)
        x = warpgroup_mma(left, k.permute((1, 0)), zero, use_acc=False, is_async=True)
        o = zero
        if RESULTS:
            q = ring.q.index(stage).permute((1, 0))
            o = warpgroup_mma(left, q, zero, use_acc=False, is_async=True)
        v = gl.convert_layout(ring.v.index(stage).permute((1, 0)).load(LEFT), X, assert_trivial=True)
        v = widened(v)
        grow = vector(planes, 1, STEP)
        x = warpgroup_mma_wait(1 if RESULTS else 0, deps=[x])
        r = gl.convert_layout(rounded(v - x * grow[None, :], DTYPE), LEFT, assert_trivial=True)
        inverse = ring.inverse.index(stage).permute((1, 0))
        d = warpgroup_mma(r, inverse, zero, use_acc=False, is_async=True)
        state = state * end_of(planes, 1, gl.SliceLayout(1, STATE))[:, None]
        rest = vector(planes, 0, STEP)
        if RESULTS:
            o = warpgroup_mma_wait(1, deps=[o])
            o = o * vector(planes, 2, STEP)[None, :]
        d = warpgroup_mma_wait(0, deps=[d])
        driven = gl.convert_layout(rounded(d * rest[None, :], DTYPE), STATE_LEFT, assert_trivial=True)
        state = warpgroup_mma(driven, k, state, is_async=True)
        if RESULTS:
            written = gl.convert_layout(rounded(d, DTYPE), LEFT, assert_trivial=True)
            o = warpgroup_mma(written, ring.scores.index(stage).permute((1, 0)), o, is_async=True)
        # What leaves is stored while these products are under way, the longest; results are those of the block before.
        tma.store_wait(0)
        leaves = c % OPTIONS.KEPT == 0 if RESULTS else c % OPTIONS.KEPT != 0
        if leaves:
            leaving.states.store(low)
        if OPTIONS.AGAIN:
            leaving.rows.index(0).permute((1, 0)).store(rounded(d, DTYPE))
        fence_async_shared()
        block_barrier()
        if leaves:
            of_head = slot_entering(0, 0, c, OPTIONS.KEPT, RESULTS) * H + walk.head
            tma_store(states, [of_head * K + walk.column, 0], leaving.states)
        if RESULTS:
            if i > 0:
                tma_store(out, [(c - 1) * C, walk.column], leaving.rows.index((i - 1) % 2))
            state = warpgroup_mma_wait(1, deps=[state])
            low = rounded(state, DTYPE)
            o = warpgroup_mma_wait(0, deps=[o])
            leaving.rows.index(i % 2).permute((1, 0)).store(rounded(o, DTYPE))
        else:
            tma_store(out, [c * C, walk.column], leaving.rows.index(0))
            state = warpgroup_mma_wait(0, deps=[state])
            low = rounded(state, DTYPE)
        release(ring, i)
    if RESULTS:
        if walk.count > 0:
            fence_async_shared()
            block_barrier()
            tma_store(out, [(walk.count - 1) * C, walk.column], leaving.rows.index((walk.count - 1) % 2))
    end_state(pointers.last, state, walk, H, STATE)
    if RESULTS:
        if walks.cu_seqlens is not None:
            clear_outside(pointers.out + walk.column, walk, walks, walk.head, H, HALF)
            clear_states(pointers.states, walk, walks, C * OPTIONS.KEPT)
    tma.store_wait(0)
    if OPTIONS.AGAIN:
        # The last program ends after the kernel before, and so does this kernel.
        if gl.program_id(0) == gl.num_programs(0) - 1:
            wait_for_previous(OVERLAP)


@gluon.jit(do_not_specialize=["q", "k", "v", "call"])
def walk(
    q,
    k,
    v,
    planes,
    inverse,
    scores,
    start_ptr,
    cu_seqlens_ptr,
    out_ptr,
    states_ptr,
    last_ptr,
    call,
    OPTIONS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """From the initial state: out o, states (kept slots, H, V, K) what enters every KEPT-th block, last the final one.

    AGAIN: from kept states; out (B T, H, V) D, states those that enter the blocks between them. It does not wait for
    the kernel before, but for those before that one.
    """
    DTYPE: gl.constexpr = k.pointer.dtype.element_ty
    STAGES: gl.constexpr = OPTIONS.STAGES
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, K], DTYPE)
    k_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, K], WIDE)
    v_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, HALF], PANEL)
    planes_s = gl.allocate_shared_memory(gl.float32, [STAGES, PLANES * C], gl.NVMMASharedLayout(0, 32, rank=1))
    inverse_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, C], PANEL)
    if OPTIONS.AGAIN:
        q_s: gl.constexpr = None
        scores_s: gl.constexpr = None
    else:
        q_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, K], WIDE)
        scores_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, C], PANEL)
    full, empty = full_and_empty(STAGES, 1)
    ring = WalkRing(q_s, k_s, v_s, planes_s, inverse_s, scores_s, full, empty)
    leaving = Leaving(
        gl.allocate_shared_memory(DTYPE, [HALF, K], WIDE),
        gl.allocate_shared_memory(DTYPE, [1 if OPTIONS.AGAIN else 2, C, HALF], PANEL),
    )
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    own = walk_of(walks, OPTIONS)
    group = own.head // (call.H // call.G)
    steps = gl.maximum(own.length, 1)
    k_rows = rows_at(k, own.row, own.first, group, UNIT)
    v_rows = rows_at(v, own.row, own.first, own.head, UNIT)
    # Descriptors of the sequence alone: steps past its end are read as zeros.
    k_described = tma.make_tensor_descriptor(k_rows.pointer, [steps, K], [k.step * UNIT, 1], [C, K], WIDE)
    v_described = tma.make_tensor_descriptor(v_rows.pointer, [steps, K], [v.step * UNIT, 1], [C, HALF], PANEL)
    if OPTIONS.AGAIN:
        q_described: gl.constexpr = None
    else:
        q_rows = rows_at(q, own.row, own.first, group, UNIT)
        q_described = tma.make_tensor_descriptor(q_rows.pointer, [steps, K], [q.step * UNIT, 1], [C, K], WIDE)
    arrays = WalkArrays(q_described, k_described, v_described, planes, inverse, scores)
    pointers = WalkPointers(start_ptr, out_ptr, states_ptr, last_ptr)
    # Descriptors are made while the kernel before drains. AGAIN runs beside it: `back` reads and writes other arrays.
    if OPTIONS.AGAIN == 0:
        wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [(carry, (pointers, ring, leaving, walks, OPTIONS, OVERLAP)), (fetch, (arrays, ring, walks, OPTIONS))],
        [1],
        [FETCH_REGISTERS],
    )
