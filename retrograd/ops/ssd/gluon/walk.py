"""SSD as a walk over a sequence's blocks, for Hopper: y and the states; mirrored dx and the states' gradients.

A program walks with two slices of a group, each of whose states stays in the registers of a warpgroup. Symbols:
../README.md. Everything is transposed, so that left operands of products come from registers. With u, k, q = x, B, C:

    scores = k q^T, weighted for each slice     (source, target)    `weigh`, a warpgroup for both slices
    out^T  = h q^T 2^s + u^T weighted scores    (channel, target)   `carry`, a warpgroup a slice
    h      = 2^e h + (2^(e - s) delta u)^T k    (channel, state)    `carry`

Mirrored, from the last block on, u, k, q = dy, C, B, and h is g, the gradient of the state that leaves the block:

    out^T  = (g q^T 2^(e - s) + u^T weighted scores) delta;    g = 2^e g + (2^s u)^T k
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

from retrograd.core.gluon import block_barrier, ex2, tma_load, tma_store
from retrograd.core.numerics import let_next_start, wait_for_previous

from ..blocks import rows_at
from .blocks import (
    CHANNELS,
    PLACE,
    SLICES,
    VECTORS,
    Q,
    clear_rows,
    masked,
    products,
    rounded,
    vector,
)
from .sequences import block_at, blocks_of, slice_of, span_of, tile_offsets, walk_of

SCORES = gl.constexpr(2)  # places for weighted scores, for each slice


@gluon.jit
def is_border(c, i, BACK: gl.constexpr):
    """Whether a walk comes to a place with this block, its i-th."""
    if BACK:
        return (c % 2 == 1) | (i == 0)
    else:
        return c % 2 == 0


@gluon.jit
def fetch(
    arrays, memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
    BACK: gl.constexpr,
):  # fmt: skip
    """Copy block after block to shared memory."""
    u, k, q, vectors, entering = arrays
    u_s, k_s, q_s, vectors_s, _, states_s = memory
    full, done, u_full, u_done, _, _, states_done = barriers
    _, _, H, _ = sizes
    walk, cut, part = span_of(plan)
    slice, slices, group, _, _, _, length, _ = walk_of(walk, sizes, cu_seqlens_ptr, P)
    begin, count = blocks_of(length, cut, part, plan)
    BYTES: gl.constexpr = k.block_type.nbytes + q.block_type.nbytes + SLICES * vectors.block_type.nbytes
    borders = 0
    for i in range(count):
        c = block_at(begin + i, length, BACK)
        stage = i % STAGES
        phase = ((i // STAGES) & 1) ^ 1
        ready = full.index(stage)
        mbarrier.wait(done.index(stage), phase)
        mbarrier.expect(ready, BYTES)
        tma_load(k, [c * Q, 0], ready, k_s.index(stage))
        tma_load(q, [c * Q, 0], ready, q_s.index(stage))
        for w in gl.static_range(SLICES):
            head, _ = slice_of(slice + w, slices, group, sizes, P)
            own = (c * H + head) * (VECTORS * Q)
            tma_load(vectors, [own], ready, vectors_s.index(stage * SLICES + w))
        ready = u_full.index(stage)
        border = is_border(c, begin + i, BACK)
        mbarrier.wait(u_done.index(stage), phase)
        if entering is not None:
            if border:
                mbarrier.expect(ready, SLICES * (u.block_type.nbytes + entering.block_type.nbytes))
            else:
                mbarrier.expect(ready, SLICES * u.block_type.nbytes)
        else:
            mbarrier.expect(ready, SLICES * u.block_type.nbytes)
        for w in gl.static_range(SLICES):
            head, p = slice_of(slice + w, slices, group, sizes, P)
            tma_load(u, [c * Q, head * P + p], ready, u_s.index(stage * SLICES + w))
        if entering is not None:
            if border:
                mbarrier.wait(states_done, (borders & 1) ^ 1)
                borders += 1
                for w in gl.static_range(SLICES):
                    head, p = slice_of(slice + w, slices, group, sizes, P)
                    state = (c // 2 * H + head) * P + p
                    tma_load(entering, [state, 0], ready, states_s.index(w))


@gluon.jit
def weigh(
    memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
    BACK: gl.constexpr,
):  # fmt: skip
    """The scores of every block, once for both slices, and weighted for each."""
    MMA: gl.constexpr = products(Q)
    SOURCE: gl.constexpr = gl.SliceLayout(1, MMA)
    TARGET: gl.constexpr = gl.SliceLayout(0, MMA)
    _, k_s, q_s, vectors_s, scores_s, _ = memory
    full, done, _, _, scored, read, _ = barriers
    walk, cut, part = span_of(plan)
    _, _, _, _, _, _, length, _ = walk_of(walk, sizes, cu_seqlens_ptr, P)
    _, count = blocks_of(length, cut, part, plan)
    source = gl.arange(0, Q, SOURCE)[:, None]
    target = gl.arange(0, Q, TARGET)[None, :]
    # All bits of what is kept; of other pairs the weight may be infinite.
    kept = gl.where(source >= target if BACK else source <= target, -1, 0).to(gl.int16)
    zero = gl.zeros([Q, Q], gl.float32, MMA)
    for i in range(count):
        stage = i % STAGES
        place = i % SCORES
        mbarrier.wait(full.index(stage), (i // STAGES) & 1)
        under_way = warpgroup_mma(
            k_s.index(stage), q_s.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        mbarrier.wait(read.index(place), ((i // SCORES) & 1) ^ 1)
        scores = warpgroup_mma_wait(0, deps=[under_way])
        for w in gl.static_range(SLICES):
            own = vectors_s.index(stage * SLICES + w)
            # delta belongs to sources, which mirrored are the targets.
            if BACK:
                weights = ex2(vector(own, 1, SOURCE)[:, None] - vector(own, 1, TARGET)[None, :])
                weights *= vector(own, 3, TARGET)[None, :]
            else:
                weights = ex2(vector(own, 1, TARGET)[None, :] - vector(own, 1, SOURCE)[:, None])
                weights *= vector(own, 3, SOURCE)[:, None]
            scores_s.index(place * SLICES + w).store(masked(scores * weights, kept, scores_s.dtype))
        fence_async_shared()
        mbarrier.arrive(scored.index(place))
        mbarrier.arrive(done.index(stage))


@gluon.jit
def carry(
    W: gl.constexpr, results, pointers, memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr,
    N: gl.constexpr, STAGES: gl.constexpr, BACK: gl.constexpr,
):  # fmt: skip
    """The W-th slice: its state, and its results."""
    out, states = results
    vectors_ptr, D_ptr, D_strides, start_ptr, ahead_ptr, out_ptr, states_ptr, both_ptr, last_ptr = pointers
    u_s, k_s, q_s, vectors_s, scores_s, states_s = memory
    full, done, u_full, u_done, scored, read, states_done = barriers
    T, sequences, H, _ = sizes
    _, _, spans = plan
    DTYPE: gl.constexpr = out_ptr.dtype.element_ty
    OUT: gl.constexpr = products(Q)  # (channel, target)
    STATE: gl.constexpr = products(N)  # (channel, state)
    OUT_LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    STATE_LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    TARGET: gl.constexpr = gl.SliceLayout(0, OUT)
    SOURCE: gl.constexpr = gl.SliceLayout(0, OUT_LEFT)
    walk, cut, part = span_of(plan)
    slice, slices, group, number, _, first, length, place = walk_of(walk, sizes, cu_seqlens_ptr, P)
    begin, count = blocks_of(length, cut, part, plan)
    head, p = slice_of(slice + W, slices, group, sizes, P)
    exists = slice + W < slices
    zero = gl.zeros([CHANNELS, Q], gl.float32, OUT)

    skip = gl.zeros([CHANNELS], gl.float32, gl.SliceLayout(1, OUT))
    if D_ptr is not None:
        channel = p + gl.arange(0, CHANNELS, gl.SliceLayout(1, OUT))
        skip = gl.load(D_ptr + head * D_strides[0] + channel * D_strides[1])
    state = gl.zeros([CHANNELS, N], gl.float32, STATE)
    own_state = ((number.to(gl.int64) * H + head) * P + p) * N
    if part > 0:
        if ahead_ptr is not None:
            at = (cut.to(gl.int64) * (spans - 1) + part - 1) * SLICES + W
            state = gl.load(ahead_ptr + at * (CHANNELS * N) + tile_offsets(CHANNELS, N, N, STATE))
    elif start_ptr is not None:
        state = gl.load(start_ptr + own_state + tile_offsets(CHANNELS, N, N, STATE))
    for i in range(count):
        c = block_at(begin + i, length, BACK)
        stage = i % STAGES
        scores = i % SCORES
        own = vectors_s.index(stage * SLICES + W)
        at_block = vectors_ptr + ((place * 2 + c).to(gl.int64) * H + head) * (VECTORS * Q)
        decay = gl.load(at_block + 3 * Q - 1)
        # Before the first product: where old results are converted behind one, all products are waited for.
        low = rounded(state, DTYPE)
        left = gl.convert_layout(low, OUT_LEFT, assert_trivial=True)
        mbarrier.wait(full.index(stage), (i // STAGES) & 1)
        border = is_border(c, begin + i, BACK)
        if both_ptr is not None:
            if border:
                mbarrier.wait(u_full.index(stage), (i // STAGES) & 1)  # entering states come with u
                other = (place * 2 + c) ^ 1
                other_decay = gl.load(vectors_ptr + (other.to(gl.int64) * H + head) * (VECTORS * Q) + 3 * Q - 1)
                at = both_ptr + (((place + c // 2).to(gl.int64) * H + head) * P + p) // 16
                store_product(at, state, states_s.index(W), decay * other_decay)
                block_barrier()
        result = warpgroup_mma(left, q_s.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
        if border:
            states_s.index(W).store(low)
            fence_async_shared()
            block_barrier()
            if exists:
                tma_store(states, [(c // 2 * H + head) * P + p, 0], states_s.index(W))
        mbarrier.wait(u_full.index(stage), (i // STAGES) & 1)
        u_place = u_s.index(stage * SLICES + W)
        u = u_place.permute((1, 0)).load(OUT_LEFT)
        put = vector(own, 2 if BACK else 0, SOURCE)
        driven = gl.convert_layout((u.to(gl.float32) * put[None, :]).to(DTYPE), STATE_LEFT, assert_trivial=True)
        grow = vector(own, 0 if BACK else 2, TARGET)
        result = warpgroup_mma_wait(0, deps=[result])
        result = result * grow[None, :]
        mbarrier.wait(scored.index(scores), (i // SCORES) & 1)
        result = warpgroup_mma(u, scores_s.index(scores * SLICES + W), result, is_async=True)
        state = warpgroup_mma(driven, k_s.index(stage), state * decay, is_async=True)
        result = warpgroup_mma_wait(1, deps=[result])
        mbarrier.arrive(read.index(scores))
        result += gl.convert_layout(u.to(gl.float32), OUT, assert_trivial=True) * skip[:, None]
        # They leave through the place of u: a warp's channels, which no other warp has read.
        u_place.permute((1, 0)).store(result.to(DTYPE))
        fence_async_shared()
        # The place before this one is free when its results have left; this block's state may be on its way.
        if i > 0:
            if border:
                tma.store_wait(1)
            else:
                tma.store_wait(0)
            mbarrier.arrive(u_done.index((i - 1) % STAGES))
        else:
            block_barrier()
        if exists:
            tma_store(out, [c * Q, head * P + p], u_place)
        state = warpgroup_mma_wait(0, deps=[state])
        mbarrier.arrive(done.index(stage))
        if border:
            tma.store_wait(1)
            if both_ptr is not None:
                mbarrier.arrive(states_done)
    tma.store_wait(0)
    if exists & (begin + count == gl.cdiv(length, Q)):
        if last_ptr is not None:
            if (count > 0) | (part == 0):
                gl.store(last_ptr + own_state + tile_offsets(CHANNELS, N, N, STATE), state)
    if cu_seqlens_ptr is not None:
        if exists & (part == 0):
            clear_outside(out_ptr, number, sequences, first, length, T, H, head, p, P)
            if not BACK:  # nobody reads the gradients of states that no place has
                clear_places(states_ptr, number, sequences, first, length, T, H, head, p, P, N)


@gluon.jit
def store_product(ptr, leaving, entering, decay):
    """What log decays have of pairs of a step before a place and one behind it, in four parts: 16 channels each."""
    rows = gl.sum(leaving * entering.load(leaving.type.layout).to(gl.float32), axis=1) * decay
    parts = gl.sum(rows.reshape([4, CHANNELS // 4]), axis=1)
    gl.store(ptr + gl.arange(0, 4, parts.type.layout), parts)


@gluon.jit
def clear_outside(out_ptr, number, sequences, first, length, T, H, head, p, P: gl.constexpr):
    """The first of packed sequences writes zeros before its start, the last behind its end."""
    out_ptr += head * P + p
    behind = first + length
    clear_rows(out_ptr, H * P, gl.where(number == 0, first, 0), CHANNELS, 4)
    count = gl.where(number == sequences - 1, T - behind, 0)
    clear_rows(out_ptr + behind.to(gl.int64) * (H * P), H * P, count, CHANNELS, 4)


@gluon.jit
def clear_places(states_ptr, number, sequences, first, length, T, H, head, p, P: gl.constexpr, N: gl.constexpr):
    """Each of packed sequences writes zeros to the places behind its own; the first also to those before."""
    own = first // PLACE + number
    for place in range(gl.where(number == 0, 0, own), own):
        clear_rows(states_ptr + ((gl.cast(place, gl.int64) * H + head) * P + p) * N, N, CHANNELS, N, 4)
    behind = gl.where(number == sequences - 1, T // PLACE + sequences, (first + length) // PLACE + number + 1)
    for place in range(own + gl.cdiv(length, PLACE), behind):
        clear_rows(states_ptr + ((gl.cast(place, gl.int64) * H + head) * P + p) * N, N, CHANNELS, N, 4)


@gluon.jit(do_not_specialize=["T", "sequences", "whole", "span", "spans", "u_strides", "k_strides", "q_strides"])
def walk(
    u_ptr,
    k_ptr,
    q_ptr,
    vectors_ptr,
    D_ptr,
    start_ptr,
    ahead_ptr,
    entering_ptr,
    cu_seqlens_ptr,
    out_ptr,
    states_ptr,
    both_ptr,
    last_ptr,
    T,
    sequences,
    H,
    G,
    whole,
    span,
    spans,
    u_strides,
    k_strides,
    q_strides,
    D_strides,
    P: gl.constexpr,
    N: gl.constexpr,
    UNIT: gl.constexpr,
    STAGES: gl.constexpr,
    BACK: gl.constexpr,
    CARRY_REGISTERS: gl.constexpr,
    WEIGH_REGISTERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Forward: u, k, q = x, B, C, from the initial state; out y, last the final state, states what enters a place.

    `ahead` (walks that are cut, spans - 1, 2, 64, N) is what enters all but the first of their spans (ahead.py).
    BACK: u, k, q = dy, C, B, from the gradient of the final state; out dx, last the gradient of the initial state,
    states the gradient of what leaves a place. With `entering`, what enters the places, also what log decays have of
    pairs of a step before and one behind a place: both (places, H P / 64, 4), to be summed.

    Strides are (batch, time, head or group) in UNIT elements.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    DTYPE: gl.constexpr = u_ptr.dtype.element_ty
    STEPS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, CHANNELS], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, N], DTYPE)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    u_s = gl.allocate_shared_memory(DTYPE, [STAGES * SLICES, Q, CHANNELS], STEPS)
    k_s = gl.allocate_shared_memory(DTYPE, [STAGES, Q, N], WIDE)
    q_s = gl.allocate_shared_memory(DTYPE, [STAGES, Q, N], WIDE)
    vectors_s = gl.allocate_shared_memory(gl.float32, [STAGES * SLICES, VECTORS * Q], LINE)
    scores_s = gl.allocate_shared_memory(DTYPE, [SCORES * SLICES, Q, Q], STEPS)
    states_s = gl.allocate_shared_memory(DTYPE, [SLICES, CHANNELS, N], WIDE)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    done = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    u_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    u_done = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    scored = gl.allocate_shared_memory(gl.int64, [SCORES, 1], BARRIER)
    read = gl.allocate_shared_memory(gl.int64, [SCORES, 1], BARRIER)
    states_done = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(done.index(i), count=SLICES + 1)
        mbarrier.init(u_full.index(i), count=1)
        mbarrier.init(u_done.index(i), count=SLICES)
    for i in gl.static_range(SCORES):
        mbarrier.init(scored.index(i), count=1)
        mbarrier.init(read.index(i), count=SLICES)
    mbarrier.init(states_done, count=SLICES)
    # Descriptors of the sequence alone: steps past its end are read as zeros, and not written.
    sizes = (T, sequences, H, G)
    plan = (whole, span, spans)
    walk, _, _ = span_of(plan)
    _, _, group, _, row, first, length, place = walk_of(walk, sizes, cu_seqlens_ptr, P)
    steps = gl.maximum(length, 1)
    count = gl.cdiv(steps, PLACE)
    u_ptr = rows_at(u_ptr, u_strides, row, first, 0, UNIT)
    k_ptr = rows_at(k_ptr, k_strides, row, first, group, UNIT)
    q_ptr = rows_at(q_ptr, q_strides, row, first, group, UNIT)
    own = vectors_ptr + place.to(gl.int64) * H * (2 * VECTORS * Q)
    at = place.to(gl.int64) * H * (P * N)
    u = tma.make_tensor_descriptor(u_ptr, [steps, H * P], [u_strides[1] * UNIT, 1], [Q, CHANNELS], STEPS)
    k = tma.make_tensor_descriptor(k_ptr, [steps, N], [k_strides[1] * UNIT, 1], [Q, N], WIDE)
    q = tma.make_tensor_descriptor(q_ptr, [steps, N], [q_strides[1] * UNIT, 1], [Q, N], WIDE)
    vectors = tma.make_tensor_descriptor(own, [count * H * (2 * VECTORS * Q)], [1], [VECTORS * Q], LINE)
    out = tma.make_tensor_descriptor(
        out_ptr + (row * T + first) * (H * P), [steps, H * P], [H * P, 1], [Q, CHANNELS], STEPS
    )
    states = tma.make_tensor_descriptor(states_ptr + at, [count * H * P, N], [N, 1], [CHANNELS, N], WIDE)
    if entering_ptr is not None:
        entering = tma.make_tensor_descriptor(entering_ptr + at, [count * H * P, N], [N, 1], [CHANNELS, N], WIDE)
    else:
        entering: gl.constexpr = None  # type: ignore[no-redef]

    results = (out, states)
    pointers = (vectors_ptr, D_ptr, D_strides, start_ptr, ahead_ptr, out_ptr, states_ptr, both_ptr, last_ptr)
    memory = (u_s, k_s, q_s, vectors_s, scores_s, states_s)
    barriers = (full, done, u_full, u_done, scored, read, states_done)
    gl.warp_specialize(
        [
            (carry, (0, results, pointers, memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK)),
            (carry, (1, results, pointers, memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK)),
            (weigh, (memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK)),
            (fetch, ((u, k, q, vectors, entering), memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK)),
        ],
        [4, 4, 1],
        [CARRY_REGISTERS, WEIGH_REGISTERS, FETCH_REGISTERS],
    )
