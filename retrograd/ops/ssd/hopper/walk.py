"""SSD as a walk over a sequence's blocks, for Hopper: y and the states; mirrored dx and the states' gradients.

A program walks with two slices of a group. The state of each stays in the registers of a warpgroup. A state of more
than 128 numbers a channel does not fit there: a program then walks with one slice, and each warpgroup has half of its
states. A *part* is what a warpgroup has. Symbols: ../README.md. Everything is transposed, so that left operands of
products come from registers. With u, k, q = x, B, C:

    scores = k q^T, weighted for each slice     (source, target)    `weigh`, a warpgroup for both slices
    out^T  = h q^T 2^s + u^T weighted scores    (channel, target)   `carry`, a warpgroup a part
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

from retrograd.core.kernels.gluon import block_barrier, ex2, tma_load, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..device import first_place, rows_at
from .blocks import (
    CHANNELS,
    PARKED,
    PARTS,
    PLACE,
    VECTORS,
    Q,
    clear_rows,
    halves,
    masked,
    park,
    parked,
    products,
    rounded,
    slices_walked,
    vector,
)
from .sequences import block_at, blocks_of, slice_of, span_of, tile_offsets, walk_of

SCORES = gl.constexpr(2)  # stages of weighted scores, for each slice
U_STAGES = gl.constexpr(3)


@gluon.jit
def is_border(c, i, BACK: gl.constexpr, KEPT: gl.constexpr):
    """Whether a walk comes with this block, its i-th, to where a state is kept; mirrored, to every place."""
    if BACK:
        return (c % 2 == 1) | (i == 0)
    else:
        return c % (2 * KEPT) == 0


@gluon.jit
def fetch(
    arrays, memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
    BACK: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """Copy block after block to shared memory."""
    u, k, q, vectors, entering, middle = arrays
    u_s, k_s, q_s, vectors_s, _, states_s, _ = memory
    full, done, u_full, u_done, _, _, states_done, _, _ = barriers
    _, _, H, _ = sizes
    SLICES: gl.constexpr = slices_walked(N)
    HALVES: gl.constexpr = halves(N)
    STATES: gl.constexpr = N // HALVES
    walk, cut, part = span_of(plan)
    slice, slices, group, _, _, _, length, _ = walk_of(walk, sizes, cu_seqlens_ptr, P, N)
    begin, count = blocks_of(length, cut, part, plan)
    BYTES: gl.constexpr = HALVES * (k.block_type.nbytes + q.block_type.nbytes) + SLICES * vectors.block_type.nbytes
    borders = 0
    for i in range(count):
        c = block_at(begin + i, length, BACK)
        stage = i % STAGES
        ready = full.index(stage)
        mbarrier.wait(done.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(ready, BYTES)
        for h in gl.static_range(HALVES):
            tma_load(k, [c * Q, h * STATES], ready, k_s.index(stage * HALVES + h))
            tma_load(q, [c * Q, h * STATES], ready, q_s.index(stage * HALVES + h))
        for w in gl.static_range(SLICES):
            head, _ = slice_of(slice + w, slices, group, sizes, P)
            own = (c * H + head) * (VECTORS * Q)
            tma_load(vectors, [own], ready, vectors_s.index(stage * SLICES + w))
        stage = i % U_STAGES
        ready = u_full.index(stage)
        border = is_border(c, begin + i, BACK, KEPT)
        mbarrier.wait(u_done.index(stage), ((i // U_STAGES) & 1) ^ 1)
        if entering is not None:
            if border:
                mbarrier.expect(ready, SLICES * u.block_type.nbytes + PARTS * entering.block_type.nbytes)
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
                for w in gl.static_range(PARTS):
                    head, p = slice_of(slice + w // HALVES, slices, group, sizes, P)
                    at = [(c // (2 * KEPT) * H + head) * P + p, w % HALVES * STATES]
                    if KEPT == 2:
                        if c // 2 % 2 == 1:
                            tma_load(middle, at, ready, states_s.index(w))
                        else:
                            tma_load(entering, at, ready, states_s.index(w))
                    else:
                        tma_load(entering, at, ready, states_s.index(w))


@gluon.jit
def weigh(
    memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
    BACK: gl.constexpr,
):  # fmt: skip
    """The scores of every block, once for both slices, and weighted for each."""
    MMA: gl.constexpr = products(Q)
    SOURCE: gl.constexpr = gl.SliceLayout(1, MMA)
    TARGET: gl.constexpr = gl.SliceLayout(0, MMA)
    _, k_s, q_s, vectors_s, scores_s, _, _ = memory
    full, done, _, _, scored, read, _, _, _ = barriers
    SLICES: gl.constexpr = slices_walked(N)
    HALVES: gl.constexpr = halves(N)
    walk, cut, part = span_of(plan)
    _, _, _, _, _, _, length, _ = walk_of(walk, sizes, cu_seqlens_ptr, P, N)
    _, count = blocks_of(length, cut, part, plan)
    source = gl.arange(0, Q, SOURCE)[:, None]
    target = gl.arange(0, Q, TARGET)[None, :]
    # All bits of what is kept; of other pairs the weight may be infinite.
    kept = gl.where(source >= target if BACK else source <= target, -1, 0).to(gl.int16)
    zero = gl.zeros([Q, Q], gl.float32, MMA)
    for i in range(count):
        stage = i % STAGES
        slot = i % SCORES
        mbarrier.wait(full.index(stage), (i // STAGES) & 1)
        under_way = zero
        for h in gl.static_range(HALVES):
            q = q_s.index(stage * HALVES + h).permute((1, 0))
            under_way = warpgroup_mma(k_s.index(stage * HALVES + h), q, under_way, use_acc=h > 0, is_async=True)
        mbarrier.wait(read.index(slot), ((i // SCORES) & 1) ^ 1)
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
            scores_s.index(slot * SLICES + w).store(masked(scores * weights, kept, scores_s.dtype))
        fence_async_shared()
        mbarrier.arrive(scored.index(slot))
        mbarrier.arrive(done.index(stage))


@gluon.jit
def entering_state(start_ptr, at, ahead_ptr, ahead_at, part):
    """The state before a program's first block: the sequence's initial one, or what `ahead` has found."""
    LAYOUT: gl.constexpr = at.type.layout
    state = gl.zeros(at.shape, gl.float32, LAYOUT)
    if part > 0:
        if ahead_ptr is not None:
            state = gl.load(ahead_ptr + ahead_at)
    elif start_ptr is not None:
        state = gl.load(start_ptr + at)
    return state


@gluon.jit
def results_of(
    out_ptr, states_ptr, number, row, first, length, sizes, cu_seqlens_ptr, STEPS: gl.constexpr, WIDE: gl.constexpr,
    STATES: gl.constexpr, P: gl.constexpr, N: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """Descriptors of the results of a sequence, and of the states of every KEPT-th of its places."""
    T, _, H, _ = sizes
    steps = gl.maximum(length, 1)
    out_ptr += (row * T + first) * (H * P)
    out = tma.make_tensor_descriptor(out_ptr, [steps, H * P], [H * P, 1], [Q, CHANNELS], STEPS)
    place = first_place(number, first, T, cu_seqlens_ptr, PLACE * KEPT)
    states_ptr += place.to(gl.int64) * H * (P * N)
    heads = gl.cdiv(steps, PLACE * KEPT) * H
    states = tma.make_tensor_descriptor(states_ptr, [heads * P, N], [N, 1], [CHANNELS, STATES], WIDE)
    return out, states


@gluon.jit
def carry(
    W: gl.constexpr, pointers, memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr, BACK: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """The W-th part: its state, and its results; of halves the first gathers both, and stores them."""
    vectors_ptr, D_ptr, D_strides, start_ptr, ahead_ptr, out_ptr, states_ptr, both_ptr, last_ptr = pointers
    u_s, k_s, q_s, vectors_s, scores_s, states_s, added_s = memory
    full, done, u_full, u_done, scored, read, states_done, added, taken = barriers
    T, sequences, H, _ = sizes
    _, _, spans = plan
    DTYPE: gl.constexpr = out_ptr.dtype.element_ty
    SLICES: gl.constexpr = slices_walked(N)
    HALVES: gl.constexpr = halves(N)
    STATES: gl.constexpr = N // HALVES
    OWN: gl.constexpr = W // HALVES  # slice of the walk
    HALF: gl.constexpr = W % HALVES
    OUT: gl.constexpr = products(Q)  # (channel, target)
    STATE: gl.constexpr = products(STATES)  # (channel, state)
    OUT_LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    STATE_LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    TARGET: gl.constexpr = gl.SliceLayout(0, OUT)
    SOURCE: gl.constexpr = gl.SliceLayout(0, OUT_LEFT)
    walk, cut, part = span_of(plan)
    slice, slices, group, number, row, first, length, place = walk_of(walk, sizes, cu_seqlens_ptr, P, N)
    begin, count = blocks_of(length, cut, part, plan)
    head, p = slice_of(slice + OWN, slices, group, sizes, P)
    exists = slice + OWN < slices
    # Made here, by the time that the first block has come.
    STEPS: gl.constexpr = u_s.type.layout
    WIDE: gl.constexpr = states_s.type.layout
    out, states = results_of(
        out_ptr, states_ptr, number, row, first, length, sizes, cu_seqlens_ptr, STEPS, WIDE, STATES, P, N,
        1 if BACK else KEPT,
    )  # fmt: skip
    zero = gl.zeros([CHANNELS, Q], gl.float32, OUT)

    skip = gl.zeros([CHANNELS], gl.float32, gl.SliceLayout(1, OUT))
    if D_ptr is not None:
        channel = p + gl.arange(0, CHANNELS, gl.SliceLayout(1, OUT))
        skip = gl.load(D_ptr + head * D_strides[0] + channel * D_strides[1])
    own_state = ((number.to(gl.int64) * H + head) * P + p) * N + HALF * STATES
    ahead_at = ((cut.to(gl.int64) * (spans - 1) + part - 1) * SLICES + OWN) * (CHANNELS * N) + HALF * STATES
    tile = tile_offsets(CHANNELS, STATES, N, STATE)
    state = entering_state(start_ptr, own_state + tile, ahead_ptr, ahead_at + tile, part)
    y = gl.zeros([CHANNELS, Q], DTYPE, OUT)
    for i in range(count):
        c = block_at(begin + i, length, BACK)
        stage = i % STAGES
        u_stage = i % U_STAGES
        scores = i % SCORES
        own = vectors_s.index(stage * SLICES + OWN)
        at_block = vectors_ptr + ((place * 2 + c).to(gl.int64) * H + head) * (VECTORS * Q)
        decay = gl.load(at_block + 3 * Q - 1)
        # Before the first product: where old results are converted behind one, all products are waited for.
        low = rounded(state, DTYPE)
        left = gl.convert_layout(low, OUT_LEFT, assert_trivial=True)
        mbarrier.wait(full.index(stage), (i // STAGES) & 1)
        border = is_border(c, begin + i, BACK, KEPT)
        if both_ptr is not None:
            if border:
                mbarrier.wait(u_full.index(u_stage), (i // U_STAGES) & 1)  # entering states come with u
                other = (place * 2 + c) ^ 1
                other_decay = gl.load(vectors_ptr + (other.to(gl.int64) * H + head) * (VECTORS * Q) + 3 * Q - 1)
                at = (((place + c // 2).to(gl.int64) * H + head) * P + p) // CHANNELS * HALVES + HALF
                store_product(both_ptr + at * 4, state, states_s.index(W), decay * other_decay)
                block_barrier()
        q = q_s.index(stage * HALVES + HALF).permute((1, 0))
        result = warpgroup_mma(left, q, zero, use_acc=False, is_async=True)
        # What leaves is stored while the product is under way; results are those of the block before.
        if border:
            states_s.index(W).store(low)
        before = u_s.index((i + U_STAGES - 1) % U_STAGES * SLICES + OWN)
        if HALF == 0:
            if i > 0:  # through u's memory: a warp's channels, which no other warp has read
                before.permute((1, 0)).store(y)
        fence_async_shared()
        block_barrier()
        if exists:
            if border:
                place_of_state = c // 2 if BACK else c // (2 * KEPT)
                tma_store(states, [(place_of_state * H + head) * P + p, HALF * STATES], states_s.index(W))
            if HALF == 0:
                if i > 0:
                    tma_store(out, [block_at(begin + i - 1, length, BACK) * Q, head * P + p], before)
        mbarrier.wait(u_full.index(u_stage), (i // U_STAGES) & 1)
        u_tile = u_s.index(u_stage * SLICES + OWN)
        u = u_tile.permute((1, 0)).load(OUT_LEFT)
        put = vector(own, 2 if BACK else 0, SOURCE)
        driven = rounded(u.to(gl.float32) * put[None, :], DTYPE)
        driven = gl.convert_layout(driven, STATE_LEFT, assert_trivial=True)
        grow = vector(own, 0 if BACK else 2, TARGET)
        result = warpgroup_mma_wait(0, deps=[result])
        result = result * grow[None, :]
        k = k_s.index(stage * HALVES + HALF)
        if HALF == 0:
            mbarrier.wait(scored.index(scores), (i // SCORES) & 1)
            result = warpgroup_mma(u, scores_s.index(scores * SLICES + OWN), result, is_async=True)
            state = warpgroup_mma(driven, k, state * decay, is_async=True)
            result = warpgroup_mma_wait(1, deps=[result])
            mbarrier.arrive(read.index(scores))
            result += gl.convert_layout(u.to(gl.float32), OUT, assert_trivial=True) * skip[:, None]
            if HALVES > 1:
                mbarrier.wait(added, i & 1)  # the other warpgroup has read u, too
                result += parked(added_s, OUT)
                mbarrier.arrive(taken)
            y = rounded(result, DTYPE)
        else:
            state = warpgroup_mma(driven, k, state * decay, is_async=True)
            mbarrier.wait(taken, (i & 1) ^ 1)
            park(added_s, result)
            mbarrier.arrive(added)
        state = warpgroup_mma_wait(0, deps=[state])
        mbarrier.arrive(done.index(stage))
        tma.store_wait(0)
        if HALF == 0:
            if i > 0:
                mbarrier.arrive(u_done.index((i - 1) % U_STAGES))
        if both_ptr is not None:
            if border:
                mbarrier.arrive(states_done)
    if HALF == 0:
        if count > 0:
            before = u_s.index((count - 1) % U_STAGES * SLICES + OWN)
            before.permute((1, 0)).store(y)
            fence_async_shared()
            block_barrier()
            if exists:
                tma_store(out, [block_at(begin + count - 1, length, BACK) * Q, head * P + p], before)
            tma.store_wait(0)
    if exists & (begin + count == gl.cdiv(length, Q)):
        if last_ptr is not None:
            if (count > 0) | (part == 0):
                gl.store(last_ptr + own_state + tile, state)
    if cu_seqlens_ptr is not None:
        if exists & (part == 0):
            if HALF == 0:
                clear_outside(out_ptr, number, sequences, first, length, T, H, head, p, P)
                if not BACK:  # nobody reads the gradients of states that no place has
                    clear_places(states_ptr, number, sequences, first, length, T, H, head, p, P, N, KEPT)


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
def clear_places(
    states_ptr, number, sequences, first, length, T, H, head, p, P: gl.constexpr, N: gl.constexpr, KEPT: gl.constexpr
):
    """Each of packed sequences writes zeros to the kept states behind its own; the first also to those before."""
    STEPS: gl.constexpr = PLACE * KEPT
    own = first // STEPS + number
    for place in range(gl.where(number == 0, 0, own), own):
        clear_rows(states_ptr + ((gl.cast(place, gl.int64) * H + head) * P + p) * N, N, CHANNELS, N, 4)
    behind = gl.where(number == sequences - 1, T // STEPS + sequences, (first + length) // STEPS + number + 1)
    for place in range(own + gl.cdiv(length, STEPS), behind):
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
    middle_ptr,
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
    KEPT: gl.constexpr,
    CARRY_REGISTERS: gl.constexpr,
    WEIGH_REGISTERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Forward: u, k, q = x, B, C, from the initial state; out y, last the final state, states what enters every KEPT-th
    place of a sequence: 1, or 2, and `middle` (middle.py) is then what enters the places between.

    `ahead` (walks that are cut, spans - 1, slices, 64, N) is what enters all but the first of their spans (ahead.py).
    BACK: u, k, q = dy, C, B, from the gradient of the final state; out dx, last the gradient of the initial state,
    states the gradient of what leaves a place. With `entering`, what enters the places, also what log decays have of
    pairs of a step before and one behind a place: both (places, H P / 64, halves, 4), to be summed.

    Strides are (batch, time, head or group) in UNIT elements.
    """
    DTYPE: gl.constexpr = u_ptr.dtype.element_ty
    STEPS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, CHANNELS], DTYPE)
    SLICES: gl.constexpr = slices_walked(N)
    HALVES: gl.constexpr = halves(N)
    STATES: gl.constexpr = N // HALVES
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, STATES], DTYPE)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    u_s = gl.allocate_shared_memory(DTYPE, [U_STAGES * SLICES, Q, CHANNELS], STEPS)
    k_s = gl.allocate_shared_memory(DTYPE, [STAGES * HALVES, Q, STATES], WIDE)
    q_s = gl.allocate_shared_memory(DTYPE, [STAGES * HALVES, Q, STATES], WIDE)
    vectors_s = gl.allocate_shared_memory(gl.float32, [STAGES * SLICES, VECTORS * Q], LINE)
    scores_s = gl.allocate_shared_memory(DTYPE, [SCORES * SLICES, Q, Q], STEPS)
    states_s = gl.allocate_shared_memory(DTYPE, [PARTS, CHANNELS, STATES], WIDE)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    done = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    u_full = gl.allocate_shared_memory(gl.int64, [U_STAGES, 1], BARRIER)
    u_done = gl.allocate_shared_memory(gl.int64, [U_STAGES, 1], BARRIER)
    scored = gl.allocate_shared_memory(gl.int64, [SCORES, 1], BARRIER)
    read = gl.allocate_shared_memory(gl.int64, [SCORES, 1], BARRIER)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(done.index(i), count=PARTS + 1)
    for i in gl.static_range(U_STAGES):
        mbarrier.init(u_full.index(i), count=1)
        mbarrier.init(u_done.index(i), count=SLICES)
    for i in gl.static_range(SCORES):
        mbarrier.init(scored.index(i), count=1)
        mbarrier.init(read.index(i), count=SLICES)
    # A barrier that nobody uses would share its memory with what is allocated next, and change it.
    if entering_ptr is not None:
        states_done = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
        mbarrier.init(states_done, count=PARTS)
    else:
        states_done: gl.constexpr = None  # type: ignore[no-redef]
    if HALVES > 1:  # what the second half adds to the results, there and taken
        added_s = gl.allocate_shared_memory(gl.float32, [2, 4, 4, 8, 4, 2, 2], PARKED)
        added = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
        taken = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
        mbarrier.init(added, count=1)
        mbarrier.init(taken, count=1)
    else:
        added_s: gl.constexpr = None  # type: ignore[no-redef]
        added: gl.constexpr = None  # type: ignore[no-redef]
        taken: gl.constexpr = None  # type: ignore[no-redef]
    # Descriptors of the sequence alone: steps past its end are read as zeros, and not written.
    sizes = (T, sequences, H, G)
    plan = (whole, span, spans)
    walk, _, _ = span_of(plan)
    _, _, group, number, row, first, length, place = walk_of(walk, sizes, cu_seqlens_ptr, P, N)
    steps = gl.maximum(length, 1)
    count = gl.cdiv(steps, PLACE)
    u_ptr = rows_at(u_ptr, u_strides, row, first, 0, UNIT)
    k_ptr = rows_at(k_ptr, k_strides, row, first, group, UNIT)
    q_ptr = rows_at(q_ptr, q_strides, row, first, group, UNIT)
    own = vectors_ptr + place.to(gl.int64) * H * (2 * VECTORS * Q)
    kept_at = first_place(number, first, T, cu_seqlens_ptr, PLACE * KEPT).to(gl.int64) * H * (P * N)
    kept = gl.cdiv(steps, PLACE * KEPT)
    u = tma.make_tensor_descriptor(u_ptr, [steps, H * P], [u_strides[1] * UNIT, 1], [Q, CHANNELS], STEPS)
    k = tma.make_tensor_descriptor(k_ptr, [steps, N], [k_strides[1] * UNIT, 1], [Q, STATES], WIDE)
    q = tma.make_tensor_descriptor(q_ptr, [steps, N], [q_strides[1] * UNIT, 1], [Q, STATES], WIDE)
    vectors = tma.make_tensor_descriptor(own, [count * H * (2 * VECTORS * Q)], [1], [VECTORS * Q], LINE)
    STATE: gl.constexpr = [CHANNELS, STATES]
    if entering_ptr is not None:
        entering = tma.make_tensor_descriptor(entering_ptr + kept_at, [kept * H * P, N], [N, 1], STATE, WIDE)
    else:
        entering: gl.constexpr = None  # type: ignore[no-redef]
    if middle_ptr is not None:
        middle = tma.make_tensor_descriptor(middle_ptr + kept_at, [kept * H * P, N], [N, 1], STATE, WIDE)
    else:
        middle: gl.constexpr = None  # type: ignore[no-redef]

    arrays = (u, k, q, vectors, entering, middle)
    pointers = (vectors_ptr, D_ptr, D_strides, start_ptr, ahead_ptr, out_ptr, states_ptr, both_ptr, last_ptr)
    memory = (u_s, k_s, q_s, vectors_s, scores_s, states_s, added_s)
    barriers = (full, done, u_full, u_done, scored, read, states_done, added, taken)
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (carry, (0, pointers, memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK, KEPT)),
            (carry, (1, pointers, memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK, KEPT)),
            (weigh, (memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK)),
            (fetch, (arrays, memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, STAGES, BACK, KEPT)),
        ],
        [4, 4, 1],
        [CARRY_REGISTERS, WEIGH_REGISTERS, FETCH_REGISTERS],
    )
