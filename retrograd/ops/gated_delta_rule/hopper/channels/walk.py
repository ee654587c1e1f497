"""What goes in sequence, for Hopper, where each channel has a decay of its own. Symbols: ../../README.md.

As ../walk.py, of rows that have their decays, so that only the state's columns decay:

    X^T = S (e^y K)^T                                        (values, steps)
    D^T = (V^T - X^T) T^T
    S   = S diag(e^y_end) + (D^T beta) (e^(y_end - y) K)     (values, keys)
    O^T = scale S (e^y Q)^T + D^T M^T

Three arrays of rows a block take twice the shared memory of k and q. What is read first has a ring of its own, whose
stages are released while the others are still read.
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
from retrograd.core.kernels.warpgroups import products, rounded, vector

from ..arrays import Leaving, WalkPointers, Walks
from ..blocks import HALF, UNIT, C, K, clear_outside, slot_entering, widened
from ..walks import begin_state, clear_states, end_state, rows_out, states_out, walk_of
from .arrays import ChannelArrays, EarlyRing, LateRing
from .blocks import PLANES, ends_of


@gluon.jit
def fetch_early(arrays, ring, walk, walks, i, OPTIONS: gl.constexpr):
    """Copy what block i needs first to shared memory."""
    BYTES: gl.constexpr = (
        arrays.k_grow.block_type.nbytes
        + arrays.v.block_type.nbytes
        + 3 * arrays.planes.block_type.nbytes
        + arrays.inverse.block_type.nbytes
        + (0 if OPTIONS.AGAIN else arrays.q_grow.block_type.nbytes)
    )
    c = walk.begin + i
    stage = acquire(ring, i)
    ready = ring.full.index(stage)
    mbarrier.expect(ready, BYTES)
    of_head = (walk.slot + c) * walks.H + walk.head
    tma_load(arrays.k_grow, [c * C, 0], ready, ring.k_grow.index(stage))
    tma_load(arrays.v, [c * C, walk.column], ready, ring.v.index(stage))
    tma_load(arrays.planes, [of_head * (PLANES * C)], ready, ring.ends.index(stage).slice(0, C))
    tma_load(arrays.planes, [of_head * (PLANES * C) + C], ready, ring.ends.index(stage).slice(C, C))
    tma_load(arrays.planes, [of_head * (PLANES * C) + 2 * C], ready, ring.rates.index(stage))
    tma_load(arrays.inverse, [of_head * C, 0], ready, ring.inverse.index(stage))
    if not OPTIONS.AGAIN:
        tma_load(arrays.q_grow, [c * C, 0], ready, ring.q_grow.index(stage))


@gluon.jit
def fetch(arrays, early, late, walks, OPTIONS: gl.constexpr):
    """Copy block after block to shared memory: what one needs first before the rest of the block before it."""
    walk = walk_of(walks, OPTIONS)
    BYTES: gl.constexpr = arrays.k_rest.block_type.nbytes + (0 if OPTIONS.AGAIN else arrays.scores.block_type.nbytes)
    if walk.count > 0:
        fetch_early(arrays, early, walk, walks, 0, OPTIONS)
    for i in range(walk.count):
        if i + 1 < walk.count:
            fetch_early(arrays, early, walk, walks, i + 1, OPTIONS)
        c = walk.begin + i
        stage = acquire(late, i)
        ready = late.full.index(stage)
        mbarrier.expect(ready, BYTES)
        tma_load(arrays.k_rest, [c * C, 0], ready, late.k_rest.index(stage))
        if not OPTIONS.AGAIN:
            of_head = (walk.slot + c) * walks.H + walk.head
            tma_load(arrays.scores, [of_head * C, 0], ready, late.scores.index(stage))


@gluon.jit
def carry(pointers, early, late, leaving, walks, scale, OPTIONS: gl.constexpr, OVERLAP: gl.constexpr):
    """The state, and what leaves: every KEPT-th state and the results, or AGAIN the other states and D."""
    RESULTS: gl.constexpr = OPTIONS.AGAIN == 0
    DTYPE: gl.constexpr = pointers.out.dtype.element_ty
    X: gl.constexpr = products(C)  # (value, step)
    STATE: gl.constexpr = products(K)  # (value, key)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, X, 2)
    STATE_LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    STEP: gl.constexpr = gl.SliceLayout(0, X)
    STAGES: gl.constexpr = early.full.shape[0]
    LATE: gl.constexpr = late.full.shape[0]
    H = walks.H
    walk = walk_of(walks, OPTIONS)
    out = rows_out(pointers.out, walk, walks, leaving.rows)
    states = states_out(pointers.states, walk, H, leaving.states, OPTIONS)
    zero = gl.zeros([HALF, C], gl.float32, X)
    state = begin_state(pointers.start, walk, H, STATE, OPTIONS)
    low = rounded(state, DTYPE)
    for i in range(walk.count):
        c = walk.begin + i
        stage = stage_of(i, STAGES)
        late_stage = stage_of(i, LATE)
        left = gl.convert_layout(low, LEFT, assert_trivial=True)
        wait_full(early, i)
        k_grow = early.k_grow.index(stage).permute((1, 0))
        x = warpgroup_mma(left, k_grow, zero, use_acc=False, is_async=True)
        o = zero
        if RESULTS:
            q_grow = early.q_grow.index(stage).permute((1, 0))
            o = warpgroup_mma(left, q_grow, zero, use_acc=False, is_async=True)
        v = gl.convert_layout(early.v.index(stage).permute((1, 0)).load(LEFT), X, assert_trivial=True)
        v = widened(v)
        x = warpgroup_mma_wait(1 if RESULTS else 0, deps=[x])
        r = gl.convert_layout(rounded(v - x, DTYPE), LEFT, assert_trivial=True)
        inverse = early.inverse.index(stage).permute((1, 0))
        d = warpgroup_mma(r, inverse, zero, use_acc=False, is_async=True)
        state = state * ends_of(early.ends.index(stage), gl.SliceLayout(0, STATE))[None, :]
        rate = vector(early.rates.index(stage), 0, STEP)
        if RESULTS:
            o = warpgroup_mma_wait(1, deps=[o])
            o = o * scale
        wait_full(late, i)
        d = warpgroup_mma_wait(0, deps=[d])
        driven = gl.convert_layout(rounded(d * rate[None, :], DTYPE), STATE_LEFT, assert_trivial=True)
        state = warpgroup_mma(driven, late.k_rest.index(late_stage), state, is_async=True)
        if RESULTS:
            written = gl.convert_layout(rounded(d, DTYPE), LEFT, assert_trivial=True)
            o = warpgroup_mma(written, late.scores.index(late_stage).permute((1, 0)), o, is_async=True)
        # What leaves is stored while these products are under way, the longest; results are those of the block before.
        tma.store_wait(0)
        leaves = c % OPTIONS.KEPT == 0 if RESULTS else c % OPTIONS.KEPT != 0
        if leaves:
            leaving.states.store(low)
        if OPTIONS.AGAIN:
            leaving.rows.index(0).permute((1, 0)).store(rounded(d, DTYPE))
        fence_async_shared()
        block_barrier()
        release(early, i)
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
        release(late, i)
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


@gluon.jit
def described(array, own, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """A descriptor of a head's rows of a sequence alone: steps past its end are read as zeros."""
    rows = rows_at(array, own.row, own.first, own.head, UNIT)
    steps = gl.maximum(own.length, 1)
    return tma.make_tensor_descriptor(rows.pointer, [steps, K], [array.step * UNIT, 1], BLOCK, LAYOUT)


@gluon.jit(do_not_specialize=["q_grow", "k_grow", "k_rest", "v", "call"])
def walk(
    q_grow,
    k_grow,
    k_rest,
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
    DTYPE: gl.constexpr = k_grow.pointer.dtype.element_ty
    STAGES: gl.constexpr = OPTIONS.STAGES
    LATE: gl.constexpr = STAGES - 1
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, K], DTYPE)
    k_grow_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, K], WIDE)
    k_rest_s = gl.allocate_shared_memory(DTYPE, [LATE, C, K], WIDE)
    v_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, HALF], PANEL)
    ends_s = gl.allocate_shared_memory(gl.float32, [STAGES, K], gl.NVMMASharedLayout(0, 32, rank=1))
    rates_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], gl.NVMMASharedLayout(0, 32, rank=1))
    inverse_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, C], PANEL)
    if OPTIONS.AGAIN:
        q_grow_s: gl.constexpr = None
        scores_s: gl.constexpr = None
    else:
        q_grow_s = gl.allocate_shared_memory(DTYPE, [STAGES, C, K], WIDE)
        scores_s = gl.allocate_shared_memory(DTYPE, [LATE, C, C], PANEL)
    full, empty = full_and_empty(STAGES, 1)
    late_full, late_empty = full_and_empty(LATE, 1)
    early = EarlyRing(q_grow_s, k_grow_s, v_s, ends_s, rates_s, inverse_s, full, empty)
    late = LateRing(k_rest_s, scores_s, late_full, late_empty)
    leaving = Leaving(
        gl.allocate_shared_memory(DTYPE, [HALF, K], WIDE),
        gl.allocate_shared_memory(DTYPE, [1 if OPTIONS.AGAIN else 2, C, HALF], PANEL),
    )
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    own = walk_of(walks, OPTIONS)
    k_grow_described = described(k_grow, own, [C, K], WIDE)
    k_rest_described = described(k_rest, own, [C, K], WIDE)
    v_described = described(v, own, [C, HALF], PANEL)
    if OPTIONS.AGAIN:
        q_grow_described: gl.constexpr = None
    else:
        q_grow_described = described(q_grow, own, [C, K], WIDE)
    arrays = ChannelArrays(q_grow_described, k_grow_described, k_rest_described, v_described, planes, inverse, scores)
    pointers = WalkPointers(start_ptr, out_ptr, states_ptr, last_ptr)
    # Descriptors are made while the kernel before drains. AGAIN runs beside it: `back` reads and writes other arrays.
    if OPTIONS.AGAIN == 0:
        wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (carry, (pointers, early, late, leaving, walks, call.scale, OPTIONS, OVERLAP)),
            (fetch, (arrays, early, late, walks, OPTIONS)),
        ],
        [1],
        [FETCH_REGISTERS],
    )
