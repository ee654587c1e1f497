"""SSD, backward, on NVIDIA GPUs since Hopper: dC and dB, and what decays and step sizes get. Symbols: ../README.md.

A program takes a place and some heads of a group, and walks over their slices. Its warps are of three kinds:
    fetch    brings a slice: rows and columns of x and dy, the state, the vectors
    consume  twice, for 64 rows each: Z += V L delta;  acc += (rows scale) state;  row sums of both, as decays need them
Of the blocks' pairs two are on the diagonal, and there L is made by exponentials. Of the other two one is empty, and in
one, of the second block's targets and the first block's sources, L is a product of two factors <= 1, so that no
exponential is needed. The rows that meet it are taken by the warps of the kernel itself, which have more registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.gluon import block_barrier, ex2, tma_load
from retrograd.core.numerics import forget, let_next_start, wait_for_previous

from ..blocks import block_of, bounds_of, first_place, rows_at
from .blocks import (
    CHANNELS,
    PARKED,
    PLACE,
    VECTORS,
    Q,
    end_of,
    halves,
    owner_of,
    park,
    parked,
    products,
    rounded,
    vector,
)

WARPS = gl.constexpr(4)  # of each kind


@gluon.jit
def part_sums(x):
    """(64, 64) -> (64, 8): sums over the columns of a product that one thread holds."""
    return gl.sum(gl.reshape(x, [x.shape[0], x.shape[1] // 8, 8]), 1)


@gluon.jit
def near_diagonal(x):
    """(64, 64) -> (4, 8, 4, 8, 2): one half of a product, with the diagonal; a thread has the other half too."""
    x = gl.permute(gl.reshape(x, [4, 2, 8, 4, 2, 8]), (0, 2, 3, 5, 1, 4))
    even, odd = gl.split(x)
    upper, _ = gl.split(even)
    _, lower = gl.split(odd)
    return gl.join(upper, lower)


@gluon.constexpr_function
def along(layout, dim):
    """Of a layout of six dimensions, one."""
    for other in reversed(range(6)):
        layout = layout if other == dim else gl.SliceLayout(other, layout)
    return layout


@gluon.jit
def own_places(LAYOUT: gl.constexpr):
    """Of the elements of a product (64, 64) in LAYOUT, row - column: a part that threads differ in, and the rest.

    To be subtracted; apart, since the first takes one register, and few comparisons of it with the second differ.
    """
    LIKE: gl.constexpr = gl.reshape(gl.zeros([Q, Q], gl.int32, LAYOUT), [4, 2, 8, Q // 8, 4, 2]).type.layout
    warp = gl.arange(0, 4, along(LIKE, 0))[:, None, None, None, None, None]
    half = gl.arange(0, 2, along(LIKE, 1))[None, :, None, None, None, None]
    row = gl.arange(0, 8, along(LIKE, 2))[None, None, :, None, None, None]
    eight = gl.arange(0, Q // 8, along(LIKE, 3))[None, None, None, :, None, None]
    pair = gl.arange(0, 4, along(LIKE, 4))[None, None, None, None, :, None]
    one = gl.arange(0, 2, along(LIKE, 5))[None, None, None, None, None, :]
    return forget(16 * warp + row - 2 * pair), 8 * (eight - half) + one


@gluon.jit
def diagonal(x, places):
    """The diagonal of a product (64, 64)."""
    near = gl.where(near_diagonal(gl.reshape(places[0] == places[1], [Q, Q])), near_diagonal(x), 0.0)
    return gl.reshape(gl.permute(gl.sum(gl.sum(near, 2), 2), (0, 2, 1)), [Q])


@gluon.jit
def where(condition, x, other: gl.constexpr):
    """x (64, 64) where a condition on `own_places` holds."""
    return gl.where(gl.convert_layout(gl.reshape(condition, [Q, Q]), x.type.layout, assert_trivial=True), x, other)


@gluon.jit
def add_product(acc, z, right, LAYOUT: gl.constexpr):
    """acc + z right, with z in two terms of 16 bits."""
    high = rounded(z, right.dtype)
    low = rounded(z - high.to(gl.float32), right.dtype)
    acc = warpgroup_mma(gl.convert_layout(high, LAYOUT, assert_trivial=True), right, acc, is_async=True)
    acc = warpgroup_mma(gl.convert_layout(low, LAYOUT, assert_trivial=True), right, acc, is_async=True)
    return warpgroup_mma_wait(0, deps=[acc])


@gluon.jit
def blocks_of_heads(sizes, HEADS: gl.constexpr, HALVES: gl.constexpr):
    """A program's place, half of the states, and group; the first of its blocks of heads, how many there are in all;
    its first head, and how many heads.
    """
    _, _, H, G, each = sizes
    place, group, _, _, head, heads = block_of(H, G, HEADS * each)
    blocks = gl.cdiv(H // G, HEADS)
    block = group * blocks + (head - group * (H // G)) // HEADS
    return place // HALVES, place % HALVES, group, block, G * blocks, head, heads


@gluon.jit
def steps_of(place, sizes, cu_seqlens_ptr):
    """The sequence of a place, by number, row and first step; the place's first step in the row, and its live steps."""
    T, sequences, _, _, _ = sizes
    number, step = owner_of(place, T, sequences, cu_seqlens_ptr)
    row, first, length = bounds_of(number, T, cu_seqlens_ptr)
    return number, row, first, first + step, gl.where(step >= 0, gl.maximum(length - step, 0), 0)


@gluon.jit
def fetch(arrays, live, first, slices, memory, barriers, H, P: gl.constexpr, STAGES: gl.constexpr):
    """Copy `left` and `right`, and slice after slice, to shared memory; `first`: the program's first head."""
    rows, columns, left, right, states, vectors = arrays
    rows_s, columns_s, states_s, vectors_s, left_s, right_s, _ = memory
    full, empty, ready = barriers
    BYTES: gl.constexpr = (
        rows.block_type.nbytes + columns.block_type.nbytes + states.block_type.nbytes + 2 * vectors.block_type.nbytes
    )
    if live > 0:
        mbarrier.expect(ready, 2 * (left.block_type.nbytes + right.block_type.nbytes))
        for w in gl.static_range(2):
            tma_load(left, [w * Q, 0], ready, left_s.index(w))
            tma_load(right, [w * Q, 0], ready, right_s.index(w))
    else:
        mbarrier.arrive(ready, count=1)
    for i in range(slices):
        slot = i % STAGES
        head = first + i // (P // CHANNELS)
        column = head * P + i % (P // CHANNELS) * CHANNELS
        bar = full.index(slot)
        mbarrier.wait(empty.index(slot), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(bar, BYTES)
        tma_load(rows, [0, column], bar, rows_s.index(slot))
        tma_load(columns, [0, column], bar, columns_s.index(slot))
        tma_load(states, [column, 0], bar, states_s.index(slot))
        for w in gl.static_range(2):
            own = (w * H + head) * (VECTORS * Q)
            tma_load(vectors, [own], bar, vectors_s.index(slot * 2 + w))


@gluon.jit
def consume(W: gl.constexpr, partial_ptr, sums, slice_at, slices, sizes, cu_seqlens_ptr, memory, barriers,
            P: gl.constexpr, N: gl.constexpr, HALVES: gl.constexpr, HEADS: gl.constexpr, STAGES: gl.constexpr,
            FOR_B: gl.constexpr):  # fmt: skip
    """Block W's rows.

    Args:
        sums, slice_at: (targets, own, dots) or (sources, behind), and where the place's first step goes.
        slices: how many.
        sizes: (T, sequences, H, G, blocks of a program).
        memory, barriers: as in `pairs`.
    """
    BOTH: gl.constexpr = (W == 1) != FOR_B  # these rows also meet the other block's columns
    Z: gl.constexpr = products(Q)
    STATES: gl.constexpr = N // HALVES
    ACC: gl.constexpr = products(STATES)
    Z_LEFT: gl.constexpr = gl.DotOperandLayout(0, Z, 2)
    ACC_LEFT: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, Z)
    COLUMN: gl.constexpr = gl.SliceLayout(0, Z)
    LEFT_ROW: gl.constexpr = gl.SliceLayout(1, Z_LEFT)
    rows_s, columns_s, states_s, vectors_s, left_s, right_s, scores_s = memory
    full, empty, ready = barriers
    DTYPE: gl.constexpr = rows_s.dtype

    places = own_places(Z)
    none = gl.zeros([Q, Q], gl.float32, Z)
    mbarrier.wait(ready, 0)
    left = left_s.index(W)
    scores = warpgroup_mma(left, right_s.index(W).permute((1, 0)), none, use_acc=False)
    if not FOR_B:
        own_score = diagonal(scores, places)
    # No decay lies between a step and itself, and of such a pair row sums less column sums would leave but rounding.
    scores = where(places[0] < places[1] if FOR_B else places[0] > places[1], scores, 0.0)
    park(scores_s.index(W), scores)
    if BOTH:
        scores_far = warpgroup_mma(left, right_s.index(1 - W).permute((1, 0)), none, use_acc=False)
        park(scores_s.index(2), scores_far)

    EACH: gl.constexpr = HEADS * (P // CHANNELS)  # slices of a block of heads
    for begin in range(0, slices, EACH):
        acc = gl.zeros([Q, STATES], gl.float32, ACC)
        z = gl.zeros([Q, Q], gl.float32, Z)
        if BOTH:
            z_far = gl.zeros([Q, Q], gl.float32, Z)
        for i in range(begin, gl.minimum(begin + EACH, slices)):
            slot = i % STAGES
            mbarrier.wait(full.index(slot), (i // STAGES) & 1)
            near = vectors_s.index(slot * 2 + W)
            far = vectors_s.index(slot * 2 + 1 - W)
            columns = columns_s.index(slot)
            state = states_s.index(slot)
            rows = rows_s.index(slot).slice(W * Q, Q)
            near_columns = columns.slice(W * Q, Q).permute((1, 0))
            pairs_token = warpgroup_mma(rows, near_columns, none, use_acc=False, is_async=True)
            # From the rows to the state, which is at the border of the place.
            log = vector(near, 1, LEFT_ROW)
            if FOR_B:
                to_end = ex2(end_of(near, 1, LEFT_ROW) - log)
                delta = vector(near, 3, LEFT_ROW)
            else:
                to_end = vector(near, 2, LEFT_ROW)
            if BOTH:
                scale = to_end * end_of(far, 2, LEFT_ROW)
            else:
                scale = to_end
            factor = scale * delta if FOR_B else scale
            scaled = rounded(rows.load(Z_LEFT).to(gl.float32) * factor[:, None], DTYPE)
            acc = warpgroup_mma(gl.convert_layout(scaled, ACC_LEFT, assert_trivial=True), state, acc, is_async=True)
            log = gl.convert_layout(log, ROW, assert_trivial=True)
            scale = gl.convert_layout(scale, ROW, assert_trivial=True)
            to_end = gl.convert_layout(to_end, ROW, assert_trivial=True)
            if FOR_B:
                delta = gl.convert_layout(delta, ROW, assert_trivial=True)
                between = vector(near, 1, COLUMN)[None, :] - log[:, None]
            else:
                between = log[:, None] - vector(near, 1, COLUMN)[None, :]
            places = own_places(Z)  # again, lest comparisons stay in registers
            weights = ex2(where(places[0] <= places[1] if FOR_B else places[0] >= places[1], between, float("-inf")))
            pair = warpgroup_mma_wait(1, deps=[pairs_token])
            if not FOR_B:
                dots = diagonal(pair, places)
            pair *= weights
            if FOR_B:
                z += pair * delta[:, None]
            else:
                pair *= vector(near, 3, COLUMN)[None, :]
                z += pair
            within = part_sums(pair * parked(scores_s.index(W), Z))
            if BOTH:
                far_columns = columns.slice((1 - W) * Q, Q).permute((1, 0))
                far_token = warpgroup_mma(rows, far_columns, none, use_acc=False, is_async=True)
                pair = warpgroup_mma_wait(0, deps=[far_token]) * vector(far, 2 if FOR_B else 0, COLUMN)[None, :]
                z_far += pair * (to_end * delta if FOR_B else to_end)[:, None]
                beyond = part_sums(pair * parked(scores_s.index(2), Z))
                factors = gl.convert_layout(to_end, gl.SliceLayout(1, beyond.type.layout), assert_trivial=True)
                within += beyond * factors[:, None]
            by_state_token = warpgroup_mma(left, state.permute((1, 0)), none, use_acc=False, is_async=True)
            by_state, acc = warpgroup_mma_wait(0, deps=[by_state_token, acc])
            # Read once more rather than kept in registers.
            again = rows.load(Z_LEFT).to(gl.float32)
            block_barrier()
            mbarrier.arrive(empty.index(slot), count=1)
            through = part_sums(by_state * gl.convert_layout(again, Z, assert_trivial=True))
            SUMS: gl.constexpr = gl.SliceLayout(1, through.type.layout)
            through *= gl.convert_layout(scale, SUMS, assert_trivial=True)[:, None]
            # Forgotten, lest a pointer for each array stays in registers.
            t = slice_at + (forget(i) * (HALVES * PLACE) + W * Q + gl.arange(0, Q, SUMS))
            if FOR_B:
                gl.store(sums[0] + t, gl.sum(within, 1))
                gl.store(sums[1] + t, gl.sum(through, 1))
            else:
                gl.store(sums[0] + t, gl.sum(within + through, 1))
                gl.store(sums[1] + t, gl.convert_layout(dots * own_score, SUMS, assert_trivial=True))
                gl.store(sums[2] + t, gl.convert_layout(dots, SUMS, assert_trivial=True) * (1 / HALVES))

        own = forget(gl.to_tensor(W))  # lest addresses from before the loop stay in registers
        acc = add_product(acc, z, right_s.index(own), ACC_LEFT)
        if BOTH:
            acc = add_product(acc, z_far, right_s.index(1 - own), ACC_LEFT)
        # Found once more rather than kept in registers.
        T, sequences, H, G, each = sizes
        again_sizes = (forget(T), sequences, forget(H), G, each)
        place, half, _, block, blocks, _, _ = blocks_of_heads(again_sizes, HEADS, HALVES)
        _, row, _, at, live = steps_of(place, again_sizes, cu_seqlens_ptr)
        t = W * Q + gl.arange(0, Q, gl.SliceLayout(1, ACC))
        n = half * STATES + gl.arange(0, STATES, gl.SliceLayout(0, ACC))
        out = partial_ptr + ((row * T + at) * blocks + block + begin // EACH) * N
        gl.store(out + t[:, None] * (blocks * N) + n[None, :], acc, mask=(t < live)[:, None])


@gluon.jit
def clear_outside(partial_ptr, place, stride, T, sequences, cu_seqlens_ptr, STATES: gl.constexpr):
    """Zeros for steps of a packed row in no sequence: a place takes as many as it has, and there are places enough."""
    TILE: gl.constexpr = gl.BlockedLayout([1, 4], [128 // STATES, STATES // 4], [WARPS, 1], [1, 0])
    LINES: gl.constexpr = 128 // STATES * WARPS
    start = gl.load(cu_seqlens_ptr)
    stop = gl.load(cu_seqlens_ptr + sequences)
    begin = place * PLACE
    end = gl.minimum(begin + PLACE, T)
    if (begin < start) | (end > stop):
        n = gl.arange(0, STATES, gl.SliceLayout(0, TILE))
        zeros = gl.zeros([LINES, STATES], gl.float32, TILE)
        for line in range(begin, end, LINES):
            t = line + gl.arange(0, LINES, gl.SliceLayout(1, TILE))
            at = t.to(gl.int64)[:, None] * stride + n[None, :]
            gl.store(partial_ptr + at, zeros, mask=((t < end) & ((t < start) | (t >= stop)))[:, None])


@gluon.jit(
    do_not_specialize=[
        "T", "sequences", "H", "each", "rows_strides", "columns_strides", "left_strides", "right_strides",
    ]
)  # fmt: skip
def pairs(
    rows_ptr,
    columns_ptr,
    left_ptr,
    right_ptr,
    cu_seqlens_ptr,
    vectors_ptr,
    states_ptr,
    middle_ptr,
    partial_ptr,
    targets_ptr,
    own_ptr,
    dots_ptr,
    sources_ptr,
    behind_ptr,
    T,
    sequences,
    H,
    G,
    each,
    rows_strides,
    columns_strides,
    left_strides,
    right_strides,
    P: gl.constexpr,
    N: gl.constexpr,
    HEADS: gl.constexpr,
    STAGES: gl.constexpr,
    FOR_B: gl.constexpr,
    UNIT: gl.constexpr,
    CONSUME_REGISTERS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dC, or FOR_B dB, summed over HEADS heads, and sums of slices for what log decays and delta get.

    Rows and columns are steps of (dy, x), `left` and `right` are (C, B), `states` enter the places; FOR_B, (x, dy),
    (B, C), and gradients of the states that leave. Strides (batch, time, head or group) are in UNIT elements.
    vectors (places, 2, H, 4, Q) as `prepare` makes them; states (places, H, P, N), or, with `middle`, those of every
    second place of a sequence, and in `middle` those of the others.
    partial: (B T, blocks of heads, N).
    Of slices, (places, H P / 64, halves, 128): by the target, `targets`, what log decays have of pairs with sources
    before it; `own`, what delta has of a step's pair with itself as a factor of x; `dots`, dy . x. FOR_B, by the
    source, what delta has as a factor of x: `sources`, of targets behind it in the place; `behind`, of those past it.
    Where there are more than 128 states a program takes a half of them: all that it finds is linear in them but `dots`,
    of which each half stores its share.
    CONSUME_REGISTERS are for rows of one block of columns; those of two get what is left.
    """
    DTYPE: gl.constexpr = rows_ptr.dtype.element_ty
    SLICES: gl.constexpr = P // 64
    sizes = (T, sequences, H, G, each)
    HALVES: gl.constexpr = halves(N)
    STATES: gl.constexpr = N // HALVES
    place, half, group, _, _, head, heads = blocks_of_heads(sizes, HEADS, HALVES)
    number, row, first, at, live = steps_of(place, sizes, cu_seqlens_ptr)
    slices = gl.where(live > 0, heads * SLICES, 0)
    wide = place.to(gl.int64)
    rows_ptr = rows_at(rows_ptr, rows_strides, row, at, 0, UNIT)
    columns_ptr = rows_at(columns_ptr, columns_strides, row, at, 0, UNIT)
    left_ptr = rows_at(left_ptr, left_strides, row, at, group, UNIT) + half * STATES
    right_ptr = rows_at(right_ptr, right_strides, row, at, group, UNIT) + half * STATES
    if middle_ptr is not None:
        own = gl.maximum(at - first, 0) // PLACE  # place of the sequence
        kept = first_place(number, first, T, cu_seqlens_ptr, PLACE * 2) + own // 2
        states_ptr = gl.where(own % 2 == 1, middle_ptr, states_ptr) + kept.to(gl.int64) * H * (P * N)
    else:
        states_ptr += wide * H * (P * N)
    states_ptr += half * STATES
    vectors_ptr += wide * H * (2 * VECTORS * Q)
    slice_at = ((wide * H + head) * (SLICES * HALVES) + half) * PLACE
    if FOR_B:
        sums = (sources_ptr, behind_ptr)
    else:
        sums = (targets_ptr, own_ptr, dots_ptr)  # type: ignore[assignment]

    ROWS: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    rows_s = gl.allocate_shared_memory(DTYPE, [STAGES, PLACE, 64], ROWS)
    columns_s = gl.allocate_shared_memory(DTYPE, [STAGES, PLACE, 64], ROWS)
    states_s = gl.allocate_shared_memory(DTYPE, [STAGES, 64, STATES], ROWS)
    vectors_s = gl.allocate_shared_memory(gl.float32, [STAGES * 2, VECTORS * Q], LINE)
    left_s = gl.allocate_shared_memory(DTYPE, [2, Q, STATES], ROWS)
    right_s = gl.allocate_shared_memory(DTYPE, [2, Q, STATES], ROWS)
    # left right^T, which no registers are left for: both blocks' own, and of the rows that meet both with the other's.
    scores_s = gl.allocate_shared_memory(gl.float32, [3, 2, 4, 4, 8, 4, 2, 2], PARKED)
    # A slice is there; both who consume it have let it go; `left` and `right` are there.
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)

    # Descriptors of what is left of the sequence: steps past its end are read as zeros.
    steps = gl.maximum(live, 1)
    rows = tma.make_tensor_descriptor(rows_ptr, [steps, H * P], [rows_strides[1] * UNIT, 1], [PLACE, CHANNELS], ROWS)
    columns = tma.make_tensor_descriptor(
        columns_ptr, [steps, H * P], [columns_strides[1] * UNIT, 1], [PLACE, CHANNELS], ROWS
    )
    left = tma.make_tensor_descriptor(left_ptr, [steps, STATES], [left_strides[1] * UNIT, 1], [Q, STATES], ROWS)
    right = tma.make_tensor_descriptor(right_ptr, [steps, STATES], [right_strides[1] * UNIT, 1], [Q, STATES], ROWS)
    states = tma.make_tensor_descriptor(states_ptr, [H * P, STATES], [N, 1], [CHANNELS, STATES], ROWS)
    vectors = tma.make_tensor_descriptor(vectors_ptr, [H * (2 * VECTORS * Q)], [1], [VECTORS * Q], LINE)

    arrays = (rows, columns, left, right, states, vectors)
    memory = (rows_s, columns_s, states_s, vectors_s, left_s, right_s, scores_s)
    barriers = (full, empty, ready)
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (consume, (0 if FOR_B else 1, partial_ptr, sums, slice_at, slices, sizes, cu_seqlens_ptr, memory,
                       barriers, P, N, HALVES, HEADS, STAGES, FOR_B)),
            (consume, (1 if FOR_B else 0, partial_ptr, sums, slice_at, slices, sizes, cu_seqlens_ptr, memory,
                       barriers, P, N, HALVES, HEADS, STAGES, FOR_B)),
            (fetch, (arrays, live, head, slices, memory, barriers, H, P, STAGES)),
        ],
        [WARPS, 1],
        [CONSUME_REGISTERS, FETCH_REGISTERS],
    )  # fmt: skip

    if cu_seqlens_ptr is not None:
        place, half, _, block, blocks, _, heads = blocks_of_heads((T, sequences, forget(H), G, each), HEADS, HALVES)
        partial_ptr += half * STATES
        for other in range(block, block + gl.cdiv(heads, HEADS)):
            clear_outside(partial_ptr + other * N, place, blocks * N, T, sequences, cu_seqlens_ptr, STATES)
