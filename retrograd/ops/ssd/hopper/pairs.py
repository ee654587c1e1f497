"""SSD, backward, for Hopper: dC, dB, and sums for the gradients of decays and step sizes. Symbols: ../README.md.

A program takes a slot and some heads of a group, and walks over their slices. Its warps are of three kinds:
    fetch    brings a slice: rows and columns of x and dy, the state, the vectors
    consume  twice, for 64 rows each: Z += V L delta;  acc += scale (rows state);  row sums of both, as decays need them
Of the blocks' pairs two are on the diagonal, and there L is made by exponentials. Of the other two one is empty, and in
one, of the second block's targets and the first block's sources, L is a product of two factors <= 1, so that no
exponential is needed. The rows that meet it are taken by the warps of the kernel itself, which have more registers.

Sums over more than 128 states do not fit beside Z. Two programs then share the work: one does what is within the slot,
Z and its row sums, the other what goes through the state (through.py).
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

from retrograd.core.kernels.gluon import block_barrier, ex2, tma_load
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import acquire, barriers, full_and_empty, release, stage_of, wait_full
from retrograd.core.kernels.sequences import bounds_of, first_slot, owner_of, rows_at
from retrograd.core.kernels.warpgroups import end_of, in_fp32, products, vector

from ..arrays import Groups
from ..device import block_of
from .arrays import BySource, ByTarget, PairArrays, PairWork, Results, Shared, Slices
from .blocks import CHANNELS, PARKED, SLOT, UNIT, VECTORS, Q, halves, park, parked
from .product import add_product, diagonal, distances_of, part_sums, where
from .through import PART, add_through, begin_by_states, left_of, part_of

WARPS = gl.constexpr(4)  # of each kind


@gluon.jit
def blocks_of_heads(work, OPTIONS: gl.constexpr):
    """A program's slot, which of the programs that share it, and group; the first of its blocks of heads, how many
    there are in all; its first head, and how many heads.
    """
    HEADS: gl.constexpr = OPTIONS.HEADS
    HALVES: gl.constexpr = halves(OPTIONS.N)
    heads_a_group = work.H // work.G
    slot, group, _, _, head, heads = block_of(Groups(work.H, work.G), HEADS * work.each)
    blocks = gl.cdiv(heads_a_group, HEADS)
    block = group * blocks + (head - group * heads_a_group) // HEADS
    return slot // HALVES, slot % HALVES, group, block, work.G * blocks, head, heads


@gluon.jit
def steps_of(slot, work):
    """The sequence of a slot, by number, row and first step; the slot's first step in the row, and its live steps."""
    number, step = owner_of(slot, work, SLOT)
    row, first, length = bounds_of(number, work)
    return number, row, first, first + step, gl.where(step >= 0, gl.maximum(length - step, 0), 0)


@gluon.jit
def partial_at(begin, EACH: gl.constexpr, partial_ptr, work, OPTIONS: gl.constexpr):
    """Where a block of heads has its sums in `partial`, whose slices begin with `begin`: the slot's first step, the
    distance to the next one, and the live steps. Found once more rather than kept in registers.
    """
    HALVES: gl.constexpr = halves(OPTIONS.N)
    T, H = forget(work.T), forget(work.H)
    again = PairWork(T, work.sequences, H, work.G, work.each, work.cu_seqlens)
    slot, share, _, block, blocks, _, _ = blocks_of_heads(again, OPTIONS)
    _, row, _, at, live = steps_of(slot, again)
    lines = blocks * HALVES  # for each step
    line = (row * work.T + at) * lines + (block + begin // EACH) * HALVES + share
    return partial_ptr + line * OPTIONS.N, lines * OPTIONS.N, live


@gluon.jit
def fetch(
    arrays, live, first, slices, ring, shared, H, OPTIONS: gl.constexpr, WITHIN: gl.constexpr, THROUGH: gl.constexpr
):
    """Copy `left` and `right`, and slice after slice, to shared memory; `first`: the program's first head."""
    P: gl.constexpr = OPTIONS.P
    HALVES: gl.constexpr = halves(OPTIONS.N)
    STATES: gl.constexpr = OPTIONS.N // HALVES
    RIGHT: gl.constexpr = arrays.right.block_type.nbytes if WITHIN else 0
    BYTES: gl.constexpr = (
        arrays.rows.block_type.nbytes
        + (arrays.columns.block_type.nbytes if WITHIN else 0)
        + (HALVES * arrays.states.block_type.nbytes if THROUGH else 0)
        + 2 * arrays.vectors.block_type.nbytes
    )
    ready = shared.full.index(0)
    if live > 0:
        mbarrier.expect(ready, 2 * HALVES * (arrays.left.block_type.nbytes + RIGHT))
        for w in gl.static_range(2):
            for h in gl.static_range(HALVES):
                tma_load(arrays.left, [w * Q, h * STATES], ready, shared.left.index(w * HALVES + h))
                if WITHIN:
                    tma_load(arrays.right, [w * Q, h * STATES], ready, shared.right.index(w * HALVES + h))
    else:
        mbarrier.arrive(ready)
    for i in range(slices):
        head = first + i // (P // CHANNELS)
        column = head * P + i % (P // CHANNELS) * CHANNELS
        stage = acquire(ring, i)
        full = ring.full.index(stage)
        mbarrier.expect(full, BYTES)
        tma_load(arrays.rows, [0, column], full, ring.rows.index(stage))
        if WITHIN:
            tma_load(arrays.columns, [0, column], full, ring.columns.index(stage))
        if THROUGH:
            for h in gl.static_range(HALVES):
                tma_load(arrays.states, [column, h * STATES], full, ring.states.index(stage * HALVES + h))
        for w in gl.static_range(2):
            own = (w * H + head) * (VECTORS * Q)
            tma_load(arrays.vectors, [own], full, ring.vectors.index(stage * 2 + w))


@gluon.jit
def fetch_shared(arrays, live, first, slices, share, ring, shared, H, OPTIONS: gl.constexpr):
    """`fetch`, for what a program does."""
    if halves(OPTIONS.N) == 1:
        fetch(arrays, live, first, slices, ring, shared, H, OPTIONS, True, True)
    elif share == 0:
        fetch(arrays, live, first, slices, ring, shared, H, OPTIONS, True, False)
    else:
        fetch(arrays, live, first, slices, ring, shared, H, OPTIONS, False, True)


@gluon.jit
def consume_shared(W: gl.constexpr, results, slices, share, work, ring, shared, OPTIONS: gl.constexpr):
    """`consume`, for what a program does."""
    if halves(OPTIONS.N) == 1 or share == 0:
        consume(W, results, slices, work, ring, shared, OPTIONS)
    else:
        consume_through(W, results, slices, work, ring, shared, OPTIONS)


@gluon.jit
def consume_through(W: gl.constexpr, results, slices, work, ring, shared, OPTIONS: gl.constexpr):
    """Block W's rows of so many slices: what goes through the state alone."""
    EACH: gl.constexpr = OPTIONS.HEADS * (OPTIONS.P // CHANNELS)  # slices of a block of heads
    OUT: gl.constexpr = products(PART)
    wait_full(shared, 0)
    for begin in range(0, slices, EACH):
        totals = add_through(W, results, begin, gl.minimum(begin + EACH, slices), ring, shared, OPTIONS)
        own = forget(gl.to_tensor(W))  # lest addresses from before the loop stay in registers
        out, distance, live = partial_at(begin, EACH, results.partial, work, OPTIONS)
        t = own * Q + gl.arange(0, Q, gl.SliceLayout(1, OUT))
        for j in gl.static_range(OPTIONS.N // PART):
            n = j * PART + gl.arange(0, PART, gl.SliceLayout(0, OUT))
            gl.store(out + t[:, None] * distance + n[None, :], totals[j], mask=(t < live)[:, None])


@gluon.jit
def scores_of(shared, W: gl.constexpr, far: gl.constexpr, HALVES: gl.constexpr):
    """Memory for block W's scores: with its own columns, or with the other's, which one block alone meets.

    What is within the slot alone needs `left` no more once the scores are made: they take its memory.
    """
    if HALVES == 1:
        return shared.scores.index(2 if far else W)
    else:
        return shared.left.index(2 * W + far)._reinterpret(gl.float32, [2, 4, 4, 8, 4, 2, 2], PARKED)


@gluon.jit
def consume(W: gl.constexpr, results, slices, work, ring, shared, OPTIONS: gl.constexpr):
    """Block W's rows of so many slices: what is within the slot and, of at most 128 states, what goes through them."""
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    STAGES: gl.constexpr = OPTIONS.STAGES
    FOR_B: gl.constexpr = OPTIONS.FOR_B
    BOTH: gl.constexpr = (W == 1) != FOR_B  # these rows also meet the other block's columns
    Z: gl.constexpr = products(Q)
    HALVES: gl.constexpr = halves(N)
    THROUGH: gl.constexpr = HALVES == 1
    STATES: gl.constexpr = N // HALVES
    Z_LEFT: gl.constexpr = gl.DotOperandLayout(0, Z, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, Z)
    COLUMN: gl.constexpr = gl.SliceLayout(0, Z)
    sums = results.sums

    distances = distances_of(Z)
    none = gl.zeros([Q, Q], gl.float32, Z)
    SUMS: gl.constexpr = gl.SliceLayout(1, part_sums(none).type.layout)
    wait_full(shared, 0)
    left = shared.left.index(W * HALVES)
    scores = warpgroup_mma(left, shared.right.index(W * HALVES).permute((1, 0)), none, use_acc=False)
    if HALVES > 1:
        scores = warpgroup_mma(shared.left.index(2 * W + 1), shared.right.index(2 * W + 1).permute((1, 0)), scores)
    if not FOR_B:
        own_score = diagonal(scores, distances)
    # No decay lies between a step and itself: of such a pair row sums less column sums would leave but rounding.
    scores = where(distances.thread < distances.rest if FOR_B else distances.thread > distances.rest, scores, 0.0)
    near_scores = scores_of(shared, W, 0, HALVES)
    far_scores = scores_of(shared, W, 1, HALVES)
    if BOTH:
        scores_far = warpgroup_mma(left, shared.right.index((1 - W) * HALVES).permute((1, 0)), none, use_acc=False)
        if HALVES > 1:
            other = shared.right.index(2 * (1 - W) + 1).permute((1, 0))
            scores_far = warpgroup_mma(shared.left.index(2 * W + 1), other, scores_far)
    if HALVES > 1:
        block_barrier()
    park(near_scores, scores)
    if BOTH:
        park(far_scores, scores_far)

    EACH: gl.constexpr = OPTIONS.HEADS * (P // CHANNELS)  # slices of a block of heads
    for begin in range(0, slices, EACH):
        if THROUGH:
            acc0 = gl.zeros([Q, PART], gl.float32, Z)
            if STATES > PART:
                acc1 = gl.zeros([Q, PART], gl.float32, Z)
        z = gl.zeros([Q, Q], gl.float32, Z)
        if BOTH:
            z_far = gl.zeros([Q, Q], gl.float32, Z)
        for i in range(begin, gl.minimum(begin + EACH, slices)):
            stage = stage_of(i, STAGES)
            wait_full(ring, i)
            near = ring.vectors.index(stage * 2 + W)
            far = ring.vectors.index(stage * 2 + 1 - W)
            rows = ring.rows.index(stage).slice(W * Q, Q)
            columns = ring.columns.index(stage)
            near_columns = columns.slice(W * Q, Q).permute((1, 0))
            pairs_token = warpgroup_mma(rows, near_columns, none, use_acc=False, is_async=True)
            if THROUGH:
                state = ring.states.index(stage)
                if not BOTH:
                    token = begin_by_states(rows, state, 0)
            # From the rows to the state, which is at the border of the slot.
            log = vector(near, 1, ROW)
            if FOR_B:
                to_end = ex2(end_of(near, 1, ROW) - log)
                delta = vector(near, 3, ROW)
            else:
                to_end = vector(near, 2, ROW)
            if BOTH:
                scale = to_end * end_of(far, 2, ROW)
            else:
                scale = to_end
            if FOR_B:
                between = vector(near, 1, COLUMN)[None, :] - log[:, None]
            else:
                between = log[:, None] - vector(near, 1, COLUMN)[None, :]
            distances = distances_of(Z)  # again, lest comparisons stay in registers
            kept = distances.thread <= distances.rest if FOR_B else distances.thread >= distances.rest
            weights = ex2(where(kept, between, float("-inf")))
            pair = warpgroup_mma_wait(1 if THROUGH and not BOTH else 0, deps=[pairs_token])
            if not FOR_B:
                dots = diagonal(pair, distances)
            pair *= weights
            if FOR_B:
                z += pair * delta[:, None]
            else:
                pair *= vector(near, 3, COLUMN)[None, :]
                z += pair
            within = part_sums(pair * parked(near_scores, Z))
            if BOTH:
                far_columns = columns.slice((1 - W) * Q, Q).permute((1, 0))
                far_token = warpgroup_mma(rows, far_columns, none, use_acc=False, is_async=True)
                if THROUGH:
                    token = begin_by_states(rows, state, 0)
                pair = warpgroup_mma_wait(1 if THROUGH else 0, deps=[far_token])
                pair *= vector(far, 2 if FOR_B else 0, COLUMN)[None, :]
                z_far += pair * (to_end * delta if FOR_B else to_end)[:, None]
                beyond = part_sums(pair * parked(far_scores, Z))
                factors = gl.convert_layout(to_end, gl.SliceLayout(1, beyond.type.layout), assert_trivial=True)
                within += beyond * factors[:, None]
            if THROUGH:
                factor = (scale * delta if FOR_B else scale)[:, None]
                own_left = left_of(left, 0)
                found = warpgroup_mma_wait(0, deps=[token])
                if STATES > PART:
                    token = begin_by_states(rows, state, 1)
                through = part_sums(found * in_fp32(own_left))
                acc0 += found * factor
                if STATES > PART:
                    own_left = left_of(left, 1)
                    found = warpgroup_mma_wait(0, deps=[token])
            # A barrier alone does not wait until vectors have been read; the next copy could overwrite them.
            fence_async_shared()
            block_barrier()
            release(ring, i)
            if THROUGH:
                if STATES > PART:
                    through += part_sums(found * in_fp32(own_left))
                    acc1 += found * factor
                through *= gl.convert_layout(scale, SUMS, assert_trivial=True)[:, None]
            # Forgotten, lest a pointer for each array stays in registers.
            t = results.at + (forget(i) * (HALVES * SLOT) + W * Q + gl.arange(0, Q, SUMS))
            if FOR_B:
                gl.store(sums.sources + t, gl.sum(within, 1))
                gl.store(sums.after + t, gl.sum(through, 1) if THROUGH else gl.zeros([Q], gl.float32, SUMS))
            else:
                gl.store(sums.targets + t, gl.sum(within + through if THROUGH else within, 1))
                gl.store(sums.own + t, gl.convert_layout(dots * own_score, SUMS, assert_trivial=True))
                gl.store(sums.dots + t, gl.convert_layout(dots, SUMS, assert_trivial=True))

        own = forget(gl.to_tensor(W))  # lest addresses from before the loop stay in registers
        out, distance, live = partial_at(begin, EACH, results.partial, work, OPTIONS)
        t = W * Q + gl.arange(0, Q, gl.SliceLayout(1, Z))
        for h in gl.static_range(HALVES):
            for j in gl.static_range(STATES // PART):
                total = gl.zeros([Q, PART], gl.float32, Z)
                if THROUGH:
                    total = acc0 if j == 0 else acc1
                total = add_product(total, z, part_of(shared.right.index(own * HALVES + h), j), Z_LEFT)
                if BOTH:
                    far_right = part_of(shared.right.index((1 - own) * HALVES + h), j)
                    total = add_product(total, z_far, far_right, Z_LEFT)
                n = h * STATES + j * PART + gl.arange(0, PART, gl.SliceLayout(0, Z))
                gl.store(out + t[:, None] * distance + n[None, :], total, mask=(t < live)[:, None])


@gluon.jit
def clear_outside(partial_ptr, slot, stride, work, STATES: gl.constexpr):
    """Zeros for steps of a packed row in no sequence: a slot takes as many as it has, and there are slots enough."""
    TILE: gl.constexpr = gl.BlockedLayout([1, 4], [128 // STATES, STATES // 4], [WARPS, 1], [1, 0])
    LINES: gl.constexpr = 128 // STATES * WARPS
    start = gl.load(work.cu_seqlens)
    stop = gl.load(work.cu_seqlens + work.sequences)
    begin = slot * SLOT
    end = gl.minimum(begin + SLOT, work.T)
    if (begin < start) | (end > stop):
        n = gl.arange(0, STATES, gl.SliceLayout(0, TILE))
        zeros = gl.zeros([LINES, STATES], gl.float32, TILE)
        for line in range(begin, end, LINES):
            t = line + gl.arange(0, LINES, gl.SliceLayout(1, TILE))
            at = t.to(gl.int64)[:, None] * stride + n[None, :]
            gl.store(partial_ptr + at, zeros, mask=((t < end) & ((t < start) | (t >= stop)))[:, None])


@gluon.jit(do_not_specialize=["rows", "columns", "left", "right", "call"])
def pairs(
    rows,
    columns,
    left,
    right,
    cu_seqlens_ptr,
    vectors_ptr,
    states_ptr,
    middle_ptr,
    partial_ptr,
    targets_ptr,
    own_ptr,
    dots_ptr,
    sources_ptr,
    after_ptr,
    call,
    G,
    OPTIONS: gl.constexpr,
    CONSUME_REGISTERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dC, or FOR_B dB, summed over HEADS heads, and sums of slices for what log decays and delta get.

    Rows and columns are steps of (dy, x), `left` and `right` are (C, B), `states` enter the slots; FOR_B, (x, dy),
    (B, C), and gradients of the states that leave.
    vectors (slots, 2, H, 4, Q) as `prepare` makes them; states (slots, H, P, N), or, with `middle`, those of every
    second slot of a sequence, and in `middle` those of the others.
    partial: (B T, blocks of heads, halves, N).
    Of slices, (slots, H P / 64, halves, 128): by the target, `targets`, what log decays have of pairs with sources
    before it; `own`, what delta has of a step's pair with itself as a factor of x; `dots`, dy . x. FOR_B, by the
    source, what delta has as a factor of x: `sources`, of later targets in the slot; `after`, of those past it.
    Where there are more than 128 states, of two programs one stores what is within the slot, and the other what goes
    through the state: `partial` has two lines then, and the sums two parts, which add up.
    CONSUME_REGISTERS are for rows of one block of columns; those of two get what is left.
    """
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    STAGES: gl.constexpr = OPTIONS.STAGES
    FOR_B: gl.constexpr = OPTIONS.FOR_B
    DTYPE: gl.constexpr = rows.pointer.dtype.element_ty
    SLICES: gl.constexpr = P // 64
    HALVES: gl.constexpr = halves(N)
    STATES: gl.constexpr = N // HALVES
    H = call.H
    work = PairWork(call.T, call.sequences, H, G, call.each, cu_seqlens_ptr)
    slot, share, group, _, _, head, heads = blocks_of_heads(work, OPTIONS)
    number, row, first, at, live = steps_of(slot, work)
    slices = gl.where(live > 0, heads * SLICES, 0)
    wide = slot.to(gl.int64)
    rows_ptr = rows_at(rows, row, at, 0, UNIT).pointer
    columns_ptr = rows_at(columns, row, at, 0, UNIT).pointer
    left_ptr = rows_at(left, row, at, group, UNIT).pointer
    right_ptr = rows_at(right, row, at, group, UNIT).pointer
    if middle_ptr is not None:
        own = gl.maximum(at - first, 0) // SLOT  # slot of the sequence
        kept = first_slot(number, first, work, SLOT * 2) + own // 2
        states_ptr = gl.where(own % 2 == 1, middle_ptr, states_ptr) + kept.to(gl.int64) * H * (P * N)
    else:
        states_ptr += wide * H * (P * N)
    vectors_ptr += wide * H * (2 * VECTORS * Q)
    slice_at = ((wide * H + head) * (SLICES * HALVES) + share) * SLOT
    if FOR_B:
        sums = BySource(sources_ptr, after_ptr)
    else:
        sums = ByTarget(targets_ptr, own_ptr, dots_ptr)  # type: ignore[assignment]

    ROWS: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    rows_s = gl.allocate_shared_memory(DTYPE, [STAGES, SLOT, 64], ROWS)
    columns_s = gl.allocate_shared_memory(DTYPE, [STAGES, SLOT, 64], ROWS)
    states_s = gl.allocate_shared_memory(DTYPE, [STAGES * HALVES, 64, STATES], ROWS)
    vectors_s = gl.allocate_shared_memory(gl.float32, [STAGES * 2, VECTORS * Q], LINE)
    left_s = gl.allocate_shared_memory(DTYPE, [2 * HALVES, Q, STATES], ROWS)
    if HALVES == 1:
        right_s = gl.allocate_shared_memory(DTYPE, [2, Q, STATES], ROWS)
        # left right^T, which no registers are left for: both blocks' own, and of the rows that meet both the other's.
        scores_s = gl.allocate_shared_memory(gl.float32, [3, 2, 4, 4, 8, 4, 2, 2], PARKED)
    else:
        gl.static_assert(STAGES >= 2)
        right_s = states_s  # no program needs both
        scores_s: gl.constexpr = None  # type: ignore[no-redef]
    shared = Shared(left_s, right_s, scores_s, barriers(1, 1))
    full, empty = full_and_empty(STAGES, 2)
    ring = Slices(rows_s, columns_s, states_s, vectors_s, full, empty)

    # Descriptors of what is left of the sequence: steps past its end are read as zeros.
    steps = gl.maximum(live, 1)
    arrays = PairArrays(
        tma.make_tensor_descriptor(rows_ptr, [steps, H * P], [rows.step * UNIT, 1], [SLOT, CHANNELS], ROWS),
        tma.make_tensor_descriptor(columns_ptr, [steps, H * P], [columns.step * UNIT, 1], [SLOT, CHANNELS], ROWS),
        tma.make_tensor_descriptor(left_ptr, [steps, N], [left.step * UNIT, 1], [Q, STATES], ROWS),
        tma.make_tensor_descriptor(right_ptr, [steps, N], [right.step * UNIT, 1], [Q, STATES], ROWS),
        tma.make_tensor_descriptor(states_ptr, [H * P, N], [N, 1], [CHANNELS, STATES], ROWS),
        tma.make_tensor_descriptor(vectors_ptr, [H * (2 * VECTORS * Q)], [1], [VECTORS * Q], LINE),
    )
    results = Results(partial_ptr, sums, slice_at)
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (consume_shared, (0 if FOR_B else 1, results, slices, share, work, ring, shared, OPTIONS)),
            (consume_shared, (1 if FOR_B else 0, results, slices, share, work, ring, shared, OPTIONS)),
            (fetch_shared, (arrays, live, head, slices, share, ring, shared, H, OPTIONS)),
        ],
        [WARPS, 1],
        [CONSUME_REGISTERS, FETCH_REGISTERS],
    )

    if cu_seqlens_ptr is not None:
        again = PairWork(call.T, call.sequences, forget(H), G, call.each, cu_seqlens_ptr)
        slot, share, _, block, blocks, _, heads = blocks_of_heads(again, OPTIONS)
        for other in range(block, block + gl.cdiv(heads, OPTIONS.HEADS)):
            for h in gl.static_range(HALVES):
                out = partial_ptr + (other * HALVES + share) * N + h * STATES
                clear_outside(out, slot, blocks * (HALVES * N), work, STATES)
