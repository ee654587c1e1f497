"""The gradients of q and k, and sums for those of g and beta, of every block by itself, for Hopper.

Symbols: ../README.md. A program takes a span of blocks of a sequence and a key head. Its warps are of three kinds:
    fetch        brings rows, states, vectors
    with_states  twice, for 64 columns of dq and dk each: x1, x2, x3
    with_pairs   P and N, summed over the heads of the key head; the others multiply them with K and Q, once a block
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

from retrograd.core.kernels.gluon import ex2, tma_load
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import acquire, release, ring_of, stage_of, wait_full
from retrograd.core.kernels.sequences import bounds_of, first_slot, owner_of, rows_at
from retrograd.core.kernels.warpgroups import products

from .arrays import GradArrays, GradPointers, GradRings, Span, Walks
from .blocks import HALF, UNIT, C, K, clear_outside, slot_entering

SUMS = gl.constexpr(8)  # of a head and block, by step; `finish` has what they are
FLAT_ROWS = gl.constexpr(32)  # of states, whose products are summed at once
ROWS = gl.constexpr(3)  # of a head: do, D, dv, in this order
CONSUMERS = gl.constexpr(3)


@gluon.jit
def span_of(walks, OPTIONS: gl.constexpr):
    """The blocks that a program takes."""
    SPAN: gl.constexpr = C * OPTIONS.SPAN
    group = gl.program_id(0) % walks.G
    number, step = owner_of(gl.program_id(0) // walks.G, walks, SPAN)
    row, first, length = bounds_of(number, walks)
    slot = first_slot(number, first, walks, C)
    kept = first_slot(number, first, walks, C * OPTIONS.KEPT)
    left = gl.where(step < 0, 0, gl.minimum(gl.maximum(length - step, 0), SPAN))
    return Span(group, number, row, first, length, slot, kept, step // C, gl.cdiv(left, C))


@gluon.jit
def load_tiles(array, at, column, ring, n):
    """Two tiles of an array side by side, as a stage of a ring."""
    stage = acquire(ring, n)
    ready = ring.full.index(stage)
    mbarrier.expect(ready, 2 * array.block_type.nbytes)
    for i in gl.static_range(2):
        tma_load(array, [at, column + i * HALF], ready, ring.blocks.index(stage * 2 + i))


@gluon.jit
def load_state(array, of_head, W: gl.constexpr, ring, n):
    """The W-th half of a state's columns, in two tiles, as a stage of a ring."""
    stage = acquire(ring, n)
    ready = ring.full.index(stage)
    mbarrier.expect(ready, 2 * array.block_type.nbytes)
    for i in gl.static_range(2):
        tma_load(array, [of_head * K + i * HALF, W * HALF], ready, ring.blocks.index(stage * 2 + i))


@gluon.jit
def load_entering(arrays, c, span, h, walks, W: gl.constexpr, ring, n, OPTIONS: gl.constexpr):
    """The state that enters a block: a kept one, or one between."""
    if c % OPTIONS.KEPT == 0:
        own = slot_entering(span.kept, span.slot, c, OPTIONS.KEPT, True)
        load_state(arrays.kept, own * walks.H + h, W, ring, n)
    else:
        own = slot_entering(span.kept, span.slot, c, OPTIONS.KEPT, False)
        load_state(arrays.between, own * walks.H + h, W, ring, n)


@gluon.jit
def fetch(arrays, rings, walks, OPTIONS: gl.constexpr):
    """Copy what a head needs to shared memory, head after head, block after block."""
    GROUP: gl.constexpr = OPTIONS.GROUP
    span = span_of(walks, OPTIONS)
    queries, vectors = rings.queries, rings.vectors
    for i in range(span.count):
        c = span.begin + i
        for w in range(GROUP):
            n = i * GROUP + w
            h = span.group * GROUP + w
            of_head = (span.slot + c) * walks.H + h
            stage = acquire(vectors, n)
            mbarrier.expect(vectors.full.index(stage), arrays.vectors.block_type.nbytes)
            tma_load(arrays.vectors, [of_head * (2 * C)], vectors.full.index(stage), vectors.blocks.index(stage))
            load_tiles(arrays.dout, c * C, h * K, rings.rows, ROWS * n)
            load_entering(arrays, c, span, h, walks, 0, rings.states, 2 * n, OPTIONS)
            load_entering(arrays, c, span, h, walks, 1, rings.other_states, 2 * n, OPTIONS)
            load_tiles(arrays.written, c * C, h * K, rings.rows, ROWS * n + 1)
            if w == 0:
                stage = acquire(queries, i)
                ready = queries.full.index(stage)
                mbarrier.expect(ready, 2 * (arrays.q.block_type.nbytes + arrays.k.block_type.nbytes))
                for part in gl.static_range(2):
                    tma_load(arrays.q, [c * C, part * HALF], ready, queries.blocks.index(stage * 4 + part))
                    tma_load(arrays.k, [c * C, part * HALF], ready, queries.blocks.index(stage * 4 + 2 + part))
            load_tiles(arrays.dv, c * C, h * K, rings.rows, ROWS * n + 2)
            load_state(arrays.leaving, of_head, 0, rings.states, 2 * n + 1)
            load_state(arrays.leaving, of_head, 1, rings.other_states, 2 * n + 1)


@gluon.jit
def tiles_at(ring, n, EACH: gl.constexpr):
    """The first tile of a stage, as a number that the compiler does not know: else it keeps descriptors for each."""
    return forget(gl.to_tensor(stage_of(n, ring.full.shape[0]) * EACH))


@gluon.jit
def through_state(rows, n, states, m, zero):
    """Rows (C, K) times half of the columns of a state (K, HALF)."""
    wait_full(rows, n)
    wait_full(states, m)
    own, other = tiles_at(rows, n, 2), tiles_at(states, m, 2)
    x = warpgroup_mma(rows.blocks.index(own), states.blocks.index(other), zero, use_acc=False, is_async=True)
    x = warpgroup_mma(rows.blocks.index(own + 1), states.blocks.index(other + 1), x, is_async=True)
    return warpgroup_mma_wait(0, deps=[x])


@gluon.jit
def of_pairs(ring, n, other_n, EACH: gl.constexpr, PLACE: gl.constexpr, OTHER: gl.constexpr, zero):
    """(C, K) times (C, K) transposed, each two tiles of a stage of EACH from a place in it on."""
    own, other = tiles_at(ring, n, EACH) + PLACE, tiles_at(ring, other_n, EACH) + OTHER
    x = warpgroup_mma(
        ring.blocks.index(own), ring.blocks.index(other).permute((1, 0)), zero, use_acc=False, is_async=True
    )
    x = warpgroup_mma(ring.blocks.index(own + 1), ring.blocks.index(other + 1).permute((1, 0)), x, is_async=True)
    return warpgroup_mma_wait(0, deps=[x])


@gluon.jit
def tile_of(memory, X: gl.constexpr):
    """A tile as a product lies, in fp32; as an operand it comes with few addresses."""
    return gl.convert_layout(memory.load(gl.DotOperandLayout(0, X, 2)), X, assert_trivial=True).to(gl.float32)


@gluon.jit
def heads_of(GROUP: gl.constexpr):
    """The number of heads; of one the compiler shall make a loop, too, and not one piece of a block's work."""
    if GROUP == 1:
        return forget(gl.to_tensor(GROUP))
    else:
        return GROUP


@gluon.jit
def store_both(both_ptr, states, n):
    """Sums of an entering state's elements times those of the gradient of the leaving one, FLAT_ROWS of them."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [4, 1], [1, 0])
    both = gl.zeros([FLAT_ROWS, HALF], gl.float32, FLAT)
    for i in gl.static_range(2):
        entering = states.blocks.index(tiles_at(states, n, 2) + i)
        leaving = states.blocks.index(tiles_at(states, n + 1, 2) + i)
        for part in gl.static_range(HALF // FLAT_ROWS):
            S = entering.slice(part * FLAT_ROWS, FLAT_ROWS).load(FLAT).to(gl.float32)
            both += S * leaving.slice(part * FLAT_ROWS, FLAT_ROWS).load(FLAT).to(gl.float32)
    gl.store(both_ptr + gl.arange(0, FLAT_ROWS, gl.SliceLayout(1, FLAT)), gl.sum(both, 1))


@gluon.jit
def with_states(W: gl.constexpr, pointers, rings, states, scale, walks, OPTIONS: gl.constexpr):
    """The W-th 64 columns of dq and dk."""
    GROUP: gl.constexpr = OPTIONS.GROUP
    X: gl.constexpr = products(C)
    STEP: gl.constexpr = gl.SliceLayout(1, X)
    rows, queries, vectors, pairs = rings.rows, rings.queries, rings.vectors, rings.pairs
    span = span_of(walks, OPTIONS)
    # Before the walk: what only these stores need is then forgotten.
    if walks.cu_seqlens is not None:
        if span.begin == 0:
            clear_outside(pointers.dq + W * HALF, span, walks, span.group, walks.G, HALF)
            clear_outside(pointers.dk + W * HALF, span, walks, span.group, walks.G, HALF)
    head = (span.slot + span.begin) * walks.H + span.group * GROUP
    base = ((span.row * walks.T + span.first + span.begin * C) * walks.G + span.group) * K + W * HALF
    left = span.length - span.begin * C
    zero = gl.zeros([C, HALF], gl.float32, X)
    t = gl.arange(0, C, STEP)
    column = gl.arange(0, HALF, gl.SliceLayout(0, X))
    for i in range(span.count):
        stage = tiles_at(queries, i, 4)
        q = queries.blocks.index(stage + W)
        k = queries.blocks.index(stage + 2 + W)
        dq = gl.zeros([C, HALF], gl.float32, X)
        dk = gl.zeros([C, HALF], gl.float32, X)
        for w in range(heads_of(GROUP)):
            n = i * GROUP + w
            of_head = gl.cast(head + i * walks.H + w, gl.int64)
            line = pointers.sums + of_head * (SUMS * C) + t
            vector = vectors.blocks.index(tiles_at(vectors, n, 1))
            wait_full(vectors, n)
            x = through_state(rows, ROWS * n, states, 2 * n, zero)
            release(rows, ROWS * n)
            x = x * (ex2(vector.slice(0, C).load(STEP)) * scale)[:, None]
            # Here, and not below the next product, where x would still be in registers.
            dq = forget(dq + x)
            wait_full(queries, i)
            before = gl.sum(x * tile_of(q, X), 1)
            x = through_state(rows, ROWS * n + 2, states, 2 * n, zero)
            release(rows, ROWS * n + 2)
            x = x * ex2(vector.slice(0, C).load(STEP))[:, None]
            dk = forget(dk - x)
            before -= gl.sum(x * tile_of(k, X), 1)
            gl.store(line + W * C, before)
            x = through_state(rows, ROWS * n + 1, states, 2 * n + 1, zero)
            release(rows, ROWS * n + 1)
            store_both(pointers.both + (of_head * 2 + W) * FLAT_ROWS, states, 2 * n)
            fence_async_shared()
            release(states, 2 * n)
            release(states, 2 * n + 1)
            end = vector.slice(C - 1, 1).load(STEP)
            x = x * ex2(end - vector.slice(0, C).load(STEP))[:, None]
            dk = forget(dk + x * vector.slice(C, C).load(STEP)[:, None])
            gl.store(line + (2 + W) * C, gl.sum(x * tile_of(k, X), 1))
            fence_async_shared()
            release(vectors, n)
        wait_full(pairs, i)
        place = tiles_at(pairs, i, 2)
        p = pairs.blocks.index(place)
        own = pairs.blocks.index(place + 1)
        live = t < left - i * C
        at = (t * (walks.G * K))[:, None] + column[None, :]
        x = warpgroup_mma(p, k, zero, use_acc=False, is_async=True)
        dq += warpgroup_mma_wait(0, deps=[x])
        gl.store(pointers.dq + base + at, dq.to(pointers.dq.dtype.element_ty), mask=live[:, None])
        x = warpgroup_mma(p.permute((1, 0)), q, zero, use_acc=False, is_async=True)
        x = warpgroup_mma(own, k, x, is_async=True)
        x = warpgroup_mma(own.permute((1, 0)), k, x, is_async=True)
        dk += warpgroup_mma_wait(0, deps=[x])
        release(pairs, i)
        release(queries, i)
        gl.store(pointers.dk + base + at, dk.to(pointers.dk.dtype.element_ty), mask=live[:, None])
        base += C * walks.G * K


@gluon.jit
def decays_of(vector, t, s, X: gl.constexpr):
    """(target, source): decays from a source to the same or a later step; 0 to earlier ones."""
    y = vector.slice(0, C).load(gl.SliceLayout(1, X))[:, None] - vector.slice(0, C).load(gl.SliceLayout(0, X))[None, :]
    return ex2(gl.where(t[:, None] >= s[None, :], y, float("-inf")))


@gluon.jit
def with_pairs(pointers, rings, scale, walks, OPTIONS: gl.constexpr):
    """P and N, and the sums of a block's pairs."""
    GROUP: gl.constexpr = OPTIONS.GROUP
    X: gl.constexpr = products(C)
    SOURCE: gl.constexpr = gl.SliceLayout(0, X)
    rows, queries, vectors, pairs = rings.rows, rings.queries, rings.vectors, rings.pairs
    span = span_of(walks, OPTIONS)
    head = (span.slot + span.begin) * walks.H + span.group * GROUP
    DTYPE: gl.constexpr = queries.blocks.dtype
    zero = gl.zeros([C, C], gl.float32, X)
    t = gl.arange(0, C, gl.SliceLayout(1, X))
    s = gl.arange(0, C, SOURCE)
    for i in range(span.count):
        of_queries = gl.zeros([C, C], gl.float32, X)
        of_keys = gl.zeros([C, C], gl.float32, X)
        for w in range(heads_of(GROUP)):
            n = i * GROUP + w
            of_head = gl.cast(head + i * walks.H + w, gl.int64)
            line = pointers.sums + of_head * (SUMS * C)
            vector = vectors.blocks.index(tiles_at(vectors, n, 1))
            wait_full(vectors, n)
            wait_full(rows, ROWS * n)
            wait_full(rows, ROWS * n + 1)
            z = of_pairs(rows, ROWS * n, ROWS * n + 1, 2, 0, 0, zero)
            release(rows, ROWS * n)
            # Where it is not a decay it is 0, whatever the product is.
            z = gl.where(t[:, None] >= s[None, :], z * decays_of(vector, t, s, X) * scale, 0.0)
            of_queries += z * vector.slice(C, C).load(SOURCE)[None, :]
            wait_full(queries, i)
            z = z * of_pairs(queries, i, i, 4, 0, 2, zero)
            gl.store(line + 6 * C + t, gl.sum(gl.where(t[:, None] == s[None, :], z, 0.0), 1))
            z = gl.where(t[:, None] > s[None, :], z, 0.0)
            gl.store(line + 4 * C + s, gl.sum(z, 0))
            targets = gl.sum(z * vector.slice(C, C).load(SOURCE)[None, :], 1)
            wait_full(rows, ROWS * n + 2)
            z = of_pairs(rows, ROWS * n + 2, ROWS * n + 1, 2, 0, 0, zero)
            release(rows, ROWS * n + 1)
            release(rows, ROWS * n + 2)
            z = gl.where(t[:, None] > s[None, :], -z * decays_of(vector, t, s, X), 0.0)
            of_keys += z * vector.slice(C, C).load(SOURCE)[None, :]
            z = z * of_pairs(queries, i, i, 4, 2, 2, zero)
            gl.store(line + 5 * C + s, gl.sum(z, 0))
            gl.store(line + 7 * C + t, targets + gl.sum(z * vector.slice(C, C).load(SOURCE)[None, :], 1))
            fence_async_shared()
            release(vectors, n)
        release(queries, i)
        acquire(pairs, i)
        place = tiles_at(pairs, i, 2)
        pairs.blocks.index(place).store(of_queries.to(DTYPE))
        pairs.blocks.index(place + 1).store(of_keys.to(DTYPE))
        fence_async_shared()
        mbarrier.arrive(pairs.full.index(0))


@gluon.jit
def tiles_ring(
    DTYPE: gl.constexpr, LAYOUT: gl.constexpr, STAGES: gl.constexpr, EACH: gl.constexpr, READERS: gl.constexpr
):
    """A ring of stages of EACH tiles, read by so many groups of warps."""
    return ring_of(gl.allocate_shared_memory(DTYPE, [STAGES * EACH, C, HALF], LAYOUT), STAGES, READERS)


@gluon.jit(do_not_specialize=["q", "k", "dout", "call"])
def grads(
    q,
    k,
    dout,
    dv_ptr,
    written_ptr,
    vectors,
    kept,
    between,
    leaving,
    cu_seqlens_ptr,
    dq_ptr,
    dk_ptr,
    sums_ptr,
    both_ptr,
    call,
    OPTIONS: gl.constexpr,
    REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dq, dk (B T, G, K). sums (slots, H, 8, C), both (slots, H, 2, 32), see `finish`.

    dv, written (B T, H, V); kept, between (see `slot_entering`, H V K): states that enter blocks.
    leaving (slots H V, K).
    """
    DTYPE: gl.constexpr = q.pointer.dtype.element_ty
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    rings = GradRings(
        queries=tiles_ring(DTYPE, TILE, OPTIONS.QUERIES, 4, CONSUMERS),
        vectors=ring_of(gl.allocate_shared_memory(gl.float32, [2, 2 * C], LINE), 2, CONSUMERS),
        rows=tiles_ring(DTYPE, TILE, OPTIONS.ROWS, 2, CONSUMERS),
        states=tiles_ring(DTYPE, TILE, OPTIONS.STATES, 2, 1),
        other_states=tiles_ring(DTYPE, TILE, OPTIONS.STATES, 2, 1),
        pairs=tiles_ring(DTYPE, TILE, 1, 2, 2),
    )
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    span = span_of(walks, OPTIONS)
    steps = gl.maximum(span.length, 1)
    H = call.H
    q_rows = rows_at(q, span.row, span.first, span.group, UNIT)
    k_rows = rows_at(k, span.row, span.first, span.group, UNIT)
    dout_rows = rows_at(dout, span.row, span.first, 0, UNIT)
    values_at = (span.row * call.T + span.first) * H * K
    # Descriptors of the sequence alone: steps past its end are read as zeros.
    arrays = GradArrays(
        tma.make_tensor_descriptor(q_rows.pointer, [steps, K], [q.step * UNIT, 1], [C, HALF], TILE),
        tma.make_tensor_descriptor(k_rows.pointer, [steps, K], [k.step * UNIT, 1], [C, HALF], TILE),
        tma.make_tensor_descriptor(dout_rows.pointer, [steps, H * K], [dout.step * UNIT, 1], [C, HALF], TILE),
        tma.make_tensor_descriptor(dv_ptr + values_at, [steps, H * K], [H * K, 1], [C, HALF], TILE),
        tma.make_tensor_descriptor(written_ptr + values_at, [steps, H * K], [H * K, 1], [C, HALF], TILE),
        vectors,
        kept,
        between,
        leaving,
    )
    pointers = GradPointers(dq_ptr, dk_ptr, sums_ptr, both_ptr)
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (with_pairs, (pointers, rings, call.scale, walks, OPTIONS)),
            (with_states, (0, pointers, rings, rings.states, call.scale, walks, OPTIONS)),
            (with_states, (1, pointers, rings, rings.other_states, call.scale, walks, OPTIONS)),
            (fetch, (arrays, rings, walks, OPTIONS)),
        ],
        [4, 4, 1],
        [REGISTERS.STATES, REGISTERS.STATES, REGISTERS.FETCH],
    )
