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
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, acquire, barriers, full_and_empty, release, ring_of, stage_of, wait_full
from retrograd.core.kernels.sequences import first_slot, rows_at
from retrograd.core.kernels.warpgroups import clear_rows, products, rounded, tile_offsets, vector

from .arrays import Blocks, WalkArrays, WalkPointers, WalkRings, Walks
from .blocks import CHANNELS, PARKED, PARTS, SLOT, UNIT, VECTORS, Q, halves, masked, park, parked, slices_walked
from .sequences import block_at, blocks_of, slice_of, span_of, walk_of

SCORES = gl.constexpr(2)  # stages of weighted scores, for each slice
U_STAGES = gl.constexpr(3)


@gluon.jit
def is_border(c, i, OPTIONS: gl.constexpr):
    """Whether a walk comes with this block, its i-th, to where a state is kept; mirrored, to every slot."""
    if OPTIONS.BACK:
        return (c % 2 == 1) | (i == 0)
    else:
        return c % (2 * OPTIONS.KEPT) == 0


@gluon.jit
def fetch(arrays, rings, walks, OPTIONS: gl.constexpr):
    """Copy block after block to shared memory."""
    blocks = rings.blocks
    SLICES: gl.constexpr = slices_walked(OPTIONS.N)
    HALVES: gl.constexpr = halves(OPTIONS.N)
    STATES: gl.constexpr = OPTIONS.N // HALVES
    span = span_of(walks)
    walk = walk_of(span.walk, walks, OPTIONS)
    begin, count = blocks_of(walk.length, span, walks)
    BYTES: gl.constexpr = (
        HALVES * (arrays.k.block_type.nbytes + arrays.q.block_type.nbytes) + SLICES * arrays.vectors.block_type.nbytes
    )
    U_BYTES: gl.constexpr = SLICES * arrays.u.block_type.nbytes
    borders = 0
    for i in range(count):
        c = block_at(begin + i, walk.length, OPTIONS.BACK)
        stage = acquire(blocks, i)
        ready = blocks.full.index(stage)
        mbarrier.expect(ready, BYTES)
        for h in gl.static_range(HALVES):
            tma_load(arrays.k, [c * Q, h * STATES], ready, blocks.k.index(stage * HALVES + h))
            tma_load(arrays.q, [c * Q, h * STATES], ready, blocks.q.index(stage * HALVES + h))
        for w in gl.static_range(SLICES):
            head, _ = slice_of(walk, w, walks, OPTIONS)
            own = (c * walks.H + head) * (VECTORS * Q)
            tma_load(arrays.vectors, [own], ready, blocks.vectors.index(stage * SLICES + w))
        border = is_border(c, begin + i, OPTIONS)
        stage = acquire(rings.u, i)
        ready = rings.u.full.index(stage)
        if arrays.entering is not None:
            if border:
                mbarrier.expect(ready, U_BYTES + PARTS * arrays.entering.block_type.nbytes)
            else:
                mbarrier.expect(ready, U_BYTES)
        else:
            mbarrier.expect(ready, U_BYTES)
        for w in gl.static_range(SLICES):
            head, p = slice_of(walk, w, walks, OPTIONS)
            tma_load(arrays.u, [c * Q, head * OPTIONS.P + p], ready, rings.u.blocks.index(stage * SLICES + w))
        if arrays.entering is not None:
            if border:
                acquire(rings.states, borders)
                borders += 1
                for w in gl.static_range(PARTS):
                    head, p = slice_of(walk, w // HALVES, walks, OPTIONS)
                    at = [(c // (2 * OPTIONS.KEPT) * walks.H + head) * OPTIONS.P + p, w % HALVES * STATES]
                    if OPTIONS.KEPT == 2:
                        if c // 2 % 2 == 1:
                            tma_load(arrays.middle, at, ready, rings.states.blocks.index(w))
                        else:
                            tma_load(arrays.entering, at, ready, rings.states.blocks.index(w))
                    else:
                        tma_load(arrays.entering, at, ready, rings.states.blocks.index(w))


@gluon.jit
def weigh(rings, walks, OPTIONS: gl.constexpr):
    """The scores of every block, once for both slices, and weighted for each."""
    MMA: gl.constexpr = products(Q)
    SOURCE: gl.constexpr = gl.SliceLayout(1, MMA)
    TARGET: gl.constexpr = gl.SliceLayout(0, MMA)
    SLICES: gl.constexpr = slices_walked(OPTIONS.N)
    HALVES: gl.constexpr = halves(OPTIONS.N)
    STAGES: gl.constexpr = OPTIONS.STAGES
    blocks = rings.blocks
    span = span_of(walks)
    walk = walk_of(span.walk, walks, OPTIONS)
    _, count = blocks_of(walk.length, span, walks)
    source = gl.arange(0, Q, SOURCE)[:, None]
    target = gl.arange(0, Q, TARGET)[None, :]
    # All bits of what is kept; of other pairs the weight may be infinite.
    kept = gl.where(source >= target if OPTIONS.BACK else source <= target, -1, 0).to(gl.int16)
    zero = gl.zeros([Q, Q], gl.float32, MMA)
    for i in range(count):
        stage = stage_of(i, STAGES)
        wait_full(blocks, i)
        under_way = zero
        for h in gl.static_range(HALVES):
            q = blocks.q.index(stage * HALVES + h).permute((1, 0))
            under_way = warpgroup_mma(blocks.k.index(stage * HALVES + h), q, under_way, use_acc=h > 0, is_async=True)
        scores_stage = acquire(rings.scores, i)
        scores = warpgroup_mma_wait(0, deps=[under_way])
        for w in gl.static_range(SLICES):
            own = blocks.vectors.index(stage * SLICES + w)
            # delta belongs to sources, which mirrored are the targets.
            if OPTIONS.BACK:
                weights = ex2(vector(own, 1, SOURCE)[:, None] - vector(own, 1, TARGET)[None, :])
                weights *= vector(own, 3, TARGET)[None, :]
            else:
                weights = ex2(vector(own, 1, TARGET)[None, :] - vector(own, 1, SOURCE)[:, None])
                weights *= vector(own, 3, SOURCE)[:, None]
            out = rings.scores.blocks.index(scores_stage * SLICES + w)
            out.store(masked(scores * weights, kept, out.dtype))
        fence_async_shared()
        mbarrier.arrive(rings.scores.full.index(scores_stage))
        release(blocks, i)


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
def results_of(pointers, walk, walks, STEPS: gl.constexpr, WIDE: gl.constexpr, OPTIONS: gl.constexpr):
    """Descriptors of the results of a sequence, and of the states of every KEPT-th of its slots; mirrored, of all."""
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    STATES: gl.constexpr = N // halves(N)
    STORED: gl.constexpr = SLOT * (1 if OPTIONS.BACK else OPTIONS.KEPT)
    H = walks.H
    steps = gl.maximum(walk.length, 1)
    out_ptr = pointers.out + (walk.row * walks.T + walk.first) * (H * P)
    out = tma.make_tensor_descriptor(out_ptr, [steps, H * P], [H * P, 1], [Q, CHANNELS], STEPS)
    slot = first_slot(walk.number, walk.first, walks, STORED)
    states_ptr = pointers.states + gl.cast(slot, gl.int64) * H * (P * N)
    heads = gl.cdiv(steps, STORED) * H
    states = tma.make_tensor_descriptor(states_ptr, [heads * P, N], [N, 1], [CHANNELS, STATES], WIDE)
    return out, states


@gluon.jit
def carry(W: gl.constexpr, pointers, rings, walks, OPTIONS: gl.constexpr):
    """The W-th part: its state, and its results; of halves the first gathers both, and stores them."""
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    BACK: gl.constexpr = OPTIONS.BACK
    STAGES: gl.constexpr = OPTIONS.STAGES
    DTYPE: gl.constexpr = pointers.out.dtype.element_ty
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
    H = walks.H
    blocks = rings.blocks
    span = span_of(walks)
    walk = walk_of(span.walk, walks, OPTIONS)
    begin, count = blocks_of(walk.length, span, walks)
    head, p = slice_of(walk, OWN, walks, OPTIONS)
    exists = walk.slice + OWN < walk.slices
    # Made here, by the time that the first block has come.
    STEPS: gl.constexpr = rings.u.blocks.type.layout
    WIDE: gl.constexpr = rings.states.blocks.type.layout
    out, states = results_of(pointers, walk, walks, STEPS, WIDE, OPTIONS)
    zero = gl.zeros([CHANNELS, Q], gl.float32, OUT)

    skip = gl.zeros([CHANNELS], gl.float32, gl.SliceLayout(1, OUT))
    D = pointers.D
    if D.pointer is not None:
        channel = p + gl.arange(0, CHANNELS, gl.SliceLayout(1, OUT))
        skip = gl.load(D.pointer + head * D.head + channel * D.channel)
    own_state = ((gl.cast(walk.number, gl.int64) * H + head) * P + p) * N + HALF * STATES
    ahead_at = ((gl.cast(span.cut, gl.int64) * (walks.spans - 1) + span.part - 1) * SLICES + OWN) * (CHANNELS * N)
    ahead_at += HALF * STATES
    tile = tile_offsets(CHANNELS, STATES, N, STATE)
    state = entering_state(pointers.start, own_state + tile, pointers.ahead, ahead_at + tile, span.part)
    y = gl.zeros([CHANNELS, Q], DTYPE, OUT)
    for i in range(count):
        c = block_at(begin + i, walk.length, BACK)
        stage = stage_of(i, STAGES)
        u_stage = stage_of(i, U_STAGES)
        scores_stage = stage_of(i, SCORES)
        own = blocks.vectors.index(stage * SLICES + OWN)
        at_block = pointers.vectors + (gl.cast(walk.slot * 2 + c, gl.int64) * H + head) * (VECTORS * Q)
        decay = gl.load(at_block + 3 * Q - 1)
        if OPTIONS.AT_BORDER:
            if exists & (walk.length < (c + 1) * Q):
                # Offsets made here, lest they stay in registers from block to block.
                own_tile = tile_offsets(CHANNELS, STATES, forget(gl.to_tensor(N)), STATE)
                gl.store(pointers.last + own_state + own_tile, state)
        # Before the first product: where old results are converted after one, all products are waited for.
        low = rounded(state, DTYPE)
        left = gl.convert_layout(low, OUT_LEFT, assert_trivial=True)
        wait_full(blocks, i)
        border = is_border(c, begin + i, OPTIONS)
        if pointers.both is not None:
            if border:
                wait_full(rings.u, i)  # entering states come with u
                other = (walk.slot * 2 + c) ^ 1
                other_at = pointers.vectors + (gl.cast(other, gl.int64) * H + head) * (VECTORS * Q)
                other_decay = gl.load(other_at + 3 * Q - 1)
                at = ((gl.cast(walk.slot + c // 2, gl.int64) * H + head) * P + p) // CHANNELS * HALVES + HALF
                store_product(pointers.both + at * 4, state, rings.states.blocks.index(W), decay * other_decay)
                block_barrier()
        q = blocks.q.index(stage * HALVES + HALF).permute((1, 0))
        result = warpgroup_mma(left, q, zero, use_acc=False, is_async=True)
        # What leaves is stored while the product is under way; results are those of the block before.
        if border:
            rings.states.blocks.index(W).store(low)
        before = rings.u.blocks.index(stage_of(i + U_STAGES - 1, U_STAGES) * SLICES + OWN)
        if HALF == 0:
            if i > 0:  # through u's memory: a warp's channels, which no other warp has read
                before.permute((1, 0)).store(y)
        fence_async_shared()
        block_barrier()
        if exists:
            if border:
                kept = c // 2 if BACK else c // (2 * OPTIONS.KEPT)
                tma_store(states, [(kept * H + head) * P + p, HALF * STATES], rings.states.blocks.index(W))
            if HALF == 0:
                if i > 0:
                    tma_store(out, [block_at(begin + i - 1, walk.length, BACK) * Q, head * P + p], before)
        wait_full(rings.u, i)
        u_tile = rings.u.blocks.index(u_stage * SLICES + OWN)
        u = u_tile.permute((1, 0)).load(OUT_LEFT)
        put = vector(own, 2 if BACK else 0, SOURCE)
        driven = rounded(u.to(gl.float32) * put[None, :], DTYPE)
        driven = gl.convert_layout(driven, STATE_LEFT, assert_trivial=True)
        grow = vector(own, 0 if BACK else 2, TARGET)
        result = warpgroup_mma_wait(0, deps=[result])
        result = result * grow[None, :]
        k = blocks.k.index(stage * HALVES + HALF)
        if HALF == 0:
            wait_full(rings.scores, i)
            scores = rings.scores.blocks.index(scores_stage * SLICES + OWN)
            result = warpgroup_mma(u, scores, result, is_async=True)
            state = warpgroup_mma(driven, k, state * decay, is_async=True)
            result = warpgroup_mma_wait(1, deps=[result])
            release(rings.scores, i)
            result += gl.convert_layout(u.to(gl.float32), OUT, assert_trivial=True) * skip[:, None]
            if HALVES > 1:
                wait_full(rings.added, i)  # the other warpgroup has read u, too
                result += parked(rings.added.blocks, OUT)
                release(rings.added, i)
            y = rounded(result, DTYPE)
        else:
            state = warpgroup_mma(driven, k, state * decay, is_async=True)
            acquire(rings.added, i)
            park(rings.added.blocks, result)
            mbarrier.arrive(rings.added.full.index(0))
        state = warpgroup_mma_wait(0, deps=[state])
        release(blocks, i)
        tma.store_wait(0)
        if HALF == 0:
            if i > 0:
                release(rings.u, i - 1)
        if pointers.both is not None:
            if border:
                mbarrier.arrive(rings.states.empty.index(0))
    if HALF == 0:
        if count > 0:
            before = rings.u.blocks.index(stage_of(count - 1, U_STAGES) * SLICES + OWN)
            before.permute((1, 0)).store(y)
            fence_async_shared()
            block_barrier()
            if exists:
                tma_store(out, [block_at(begin + count - 1, walk.length, BACK) * Q, head * P + p], before)
            tma.store_wait(0)
    finished = begin + count == gl.cdiv(walk.length, Q)
    if OPTIONS.AT_BORDER:
        finished = (begin + count) * Q == walk.length
    if exists & finished:
        if pointers.last is not None:
            if (count > 0) | (span.part == 0):
                gl.store(pointers.last + own_state + tile, state)
    if walks.cu_seqlens is not None:
        if exists & (span.part == 0):
            if HALF == 0:
                clear_outside(pointers.out, walk, walks, head, p, P)
                if not BACK:  # nobody reads the gradients of states that no slot has
                    clear_places(pointers.states, walk, walks, head, p, OPTIONS)


@gluon.jit
def store_product(ptr, leaving, entering, decay):
    """The log-decay gradient of pairs of steps on either side of a slot, in four parts of 16 channels each."""
    rows = gl.sum(leaving * entering.load(leaving.type.layout).to(gl.float32), axis=1) * decay
    parts = gl.sum(rows.reshape([4, CHANNELS // 4]), axis=1)
    gl.store(ptr + gl.arange(0, 4, parts.type.layout), parts)


@gluon.jit
def clear_outside(out_ptr, walk, walks, head, p, P: gl.constexpr):
    """The first of packed sequences writes zeros before its start, the last after its end."""
    row = walks.H * P
    out_ptr += head * P + p
    after = walk.first + walk.length
    clear_rows(out_ptr, row, gl.where(walk.number == 0, walk.first, 0), CHANNELS, 4)
    count = gl.where(walk.number == walks.sequences - 1, walks.T - after, 0)
    clear_rows(out_ptr + gl.cast(after, gl.int64) * row, row, count, CHANNELS, 4)


@gluon.jit
def clear_places(states_ptr, walk, walks, head, p, OPTIONS: gl.constexpr):
    """Each of packed sequences writes zeros to the kept states after its own; the first also to those before."""
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    STEPS: gl.constexpr = SLOT * OPTIONS.KEPT
    number, H = walk.number, walks.H
    own = walk.first // STEPS + number
    for slot in range(gl.where(number == 0, 0, own), own):
        clear_rows(states_ptr + ((gl.cast(slot, gl.int64) * H + head) * P + p) * N, N, CHANNELS, N, 4)
    last = number == walks.sequences - 1
    slots = walks.T // STEPS + walks.sequences
    after = gl.where(last, slots, (walk.first + walk.length) // STEPS + number + 1)
    for slot in range(own + gl.cdiv(walk.length, STEPS), after):
        clear_rows(states_ptr + ((gl.cast(slot, gl.int64) * H + head) * P + p) * N, N, CHANNELS, N, 4)


@gluon.jit(do_not_specialize=["u", "k", "q", "lengths", "spans"])
def walk(
    u,
    k,
    q,
    vectors_ptr,
    D,
    start_ptr,
    ahead_ptr,
    entering_ptr,
    middle_ptr,
    cu_seqlens_ptr,
    out_ptr,
    states_ptr,
    both_ptr,
    last_ptr,
    lengths,
    groups,
    spans,
    OPTIONS: gl.constexpr,
    REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Forward: u, k, q = x, B, C, from the initial state; out y, last the final state, states what enters every KEPT-th
    slot of a sequence: 1, or 2, and `middle` (middle.py) is then what enters the slots between. AT_BORDER: last is what
    enters the last block if that is incomplete.

    `ahead` (walks that are cut, spans - 1, slices, 64, N) is what enters all but the first of their spans (ahead.py).
    BACK: u, k, q = dy, C, B, from the gradient of the final state; out dx, last the gradient of the initial state,
    states the gradient of what leaves a slot. With `entering`, what enters the slots, also the log-decay gradient of
    pairs of steps on either side of a slot: both (slots, H P / 64, halves, 4), to be summed.
    """
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    STAGES: gl.constexpr = OPTIONS.STAGES
    H = groups.H
    DTYPE: gl.constexpr = u.pointer.dtype.element_ty
    STEPS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, CHANNELS], DTYPE)
    SLICES: gl.constexpr = slices_walked(N)
    HALVES: gl.constexpr = halves(N)
    STATES: gl.constexpr = N // HALVES
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, STATES], DTYPE)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    u_s = gl.allocate_shared_memory(DTYPE, [U_STAGES * SLICES, Q, CHANNELS], STEPS)
    k_s = gl.allocate_shared_memory(DTYPE, [STAGES * HALVES, Q, STATES], WIDE)
    q_s = gl.allocate_shared_memory(DTYPE, [STAGES * HALVES, Q, STATES], WIDE)
    vectors_s = gl.allocate_shared_memory(gl.float32, [STAGES * SLICES, VECTORS * Q], LINE)
    scores_s = gl.allocate_shared_memory(DTYPE, [SCORES * SLICES, Q, Q], STEPS)
    states_s = gl.allocate_shared_memory(DTYPE, [PARTS, CHANNELS, STATES], WIDE)
    full, empty = full_and_empty(STAGES, PARTS + 1)
    u_full, u_empty = full_and_empty(U_STAGES, SLICES)
    scores_full, scores_empty = full_and_empty(SCORES, SLICES)
    # A barrier that nobody uses would share its memory with what is allocated next, and change it.
    states = Ring(states_s, None, barriers(1, PARTS) if entering_ptr is not None else None)
    if HALVES > 1:
        added = ring_of(gl.allocate_shared_memory(gl.float32, [2, 4, 4, 8, 4, 2, 2], PARKED), 1, 1)
    else:
        added: gl.constexpr = None  # type: ignore[no-redef]
    rings = WalkRings(
        blocks=Blocks(k_s, q_s, vectors_s, full, empty),
        u=Ring(u_s, u_full, u_empty),
        scores=Ring(scores_s, scores_full, scores_empty),
        states=states,
        added=added,
    )
    # Descriptors of the sequence alone: steps past its end are read as zeros, and not written.
    walks = Walks(lengths.T, lengths.sequences, H, groups.G, spans.whole, spans.span, spans.spans, cu_seqlens_ptr)
    span = span_of(walks)
    own = walk_of(span.walk, walks, OPTIONS)
    KEPT: gl.constexpr = SLOT * OPTIONS.KEPT
    steps = gl.maximum(own.length, 1)
    count = gl.cdiv(steps, SLOT)
    u_rows = rows_at(u, own.row, own.first, 0, UNIT)
    k_rows = rows_at(k, own.row, own.first, own.group, UNIT)
    q_rows = rows_at(q, own.row, own.first, own.group, UNIT)
    vectors_at = vectors_ptr + gl.cast(own.slot, gl.int64) * H * (2 * VECTORS * Q)
    kept_at = gl.cast(first_slot(own.number, own.first, walks, KEPT), gl.int64) * H * (P * N)
    kept = gl.cdiv(steps, KEPT)
    u_described = tma.make_tensor_descriptor(u_rows.pointer, [steps, H * P], [u.step * UNIT, 1], [Q, CHANNELS], STEPS)
    k_described = tma.make_tensor_descriptor(k_rows.pointer, [steps, N], [k.step * UNIT, 1], [Q, STATES], WIDE)
    q_described = tma.make_tensor_descriptor(q_rows.pointer, [steps, N], [q.step * UNIT, 1], [Q, STATES], WIDE)
    vectors = tma.make_tensor_descriptor(vectors_at, [count * H * (2 * VECTORS * Q)], [1], [VECTORS * Q], LINE)
    STATE: gl.constexpr = [CHANNELS, STATES]
    if entering_ptr is not None:
        entering = tma.make_tensor_descriptor(entering_ptr + kept_at, [kept * H * P, N], [N, 1], STATE, WIDE)
    else:
        entering: gl.constexpr = None  # type: ignore[no-redef]
    if middle_ptr is not None:
        middle = tma.make_tensor_descriptor(middle_ptr + kept_at, [kept * H * P, N], [N, 1], STATE, WIDE)
    else:
        middle: gl.constexpr = None  # type: ignore[no-redef]

    arrays = WalkArrays(u_described, k_described, q_described, vectors, entering, middle)
    pointers = WalkPointers(vectors_ptr, D, start_ptr, ahead_ptr, out_ptr, states_ptr, both_ptr, last_ptr)
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (carry, (0, pointers, rings, walks, OPTIONS)),
            (carry, (1, pointers, rings, walks, OPTIONS)),
            (weigh, (rings, walks, OPTIONS)),
            (fetch, (arrays, rings, walks, OPTIONS)),
        ],
        [4, 4, 1],
        [REGISTERS.CARRY, REGISTERS.WEIGH, REGISTERS.FETCH],
    )
