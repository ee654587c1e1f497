"""SSD: what enters the spans of a walk, by a walk of the states alone. Symbols: ../README.md.

A program takes some states of a slice, so that there are programs enough, and that a block takes little time: the
blocks come one after the other. The arithmetic of a state is that of walk.py to the bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import tma_load
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.rings import acquire, full_and_empty, release, stage_of, wait_full
from retrograd.core.kernels.sequences import rows_at
from retrograd.core.kernels.warpgroups import end_of, products, tile_offsets, vector

from .arrays import AheadArrays, AheadRing, Walks
from .blocks import CHANNELS, SLOT, UNIT, VECTORS, Q, scaled, slices_walked
from .sequences import block_at, slice_of, walk_of


@gluon.jit
def part_of(walks, OPTIONS: gl.constexpr):
    """The walk, its number among those that are cut, its slice, and the first of the states."""
    SLICES: gl.constexpr = slices_walked(OPTIONS.N)
    PARTS: gl.constexpr = OPTIONS.N // OPTIONS.COLUMNS
    own = gl.program_id(0) // PARTS
    return walks.whole + own // SLICES, own // SLICES, own % SLICES, gl.program_id(0) % PARTS * OPTIONS.COLUMNS


@gluon.jit
def blocks_ahead(length, walks):
    """How many blocks lie before a sequence's last span."""
    return gl.minimum(gl.maximum(gl.cdiv(length, Q) - 1, 0) // walks.span, walks.spans - 1) * walks.span


@gluon.jit
def fetch(arrays, ring, walks, OPTIONS: gl.constexpr):
    """Copy blocks to shared memory, two at a time, in the order in which they lie."""
    u, k, vectors = arrays.u, arrays.k, arrays.vectors
    number, _, w, n = part_of(walks, OPTIONS)
    walk = walk_of(number, walks, OPTIONS)
    head, p = slice_of(walk, w, walks, OPTIONS)
    for i in range(blocks_ahead(walk.length, walks) // 2):
        c = block_at(2 * i + (1 if OPTIONS.BACK else 0), walk.length, OPTIONS.BACK)
        stage = acquire(ring, i)
        ready = ring.full.index(stage)
        mbarrier.expect(ready, u.block_type.nbytes + k.block_type.nbytes + 2 * vectors.block_type.nbytes)
        tma_load(u, [c * Q, head * OPTIONS.P + p], ready, ring.u.index(stage))
        for j in gl.static_range(2):
            own = ((c + j) * walks.H + head) * (VECTORS * Q)
            tma_load(vectors, [own], ready, ring.vectors.index(2 * stage + j))
        tma_load(k, [c * Q, n], ready, ring.k.index(stage))


@gluon.constexpr_function
def half(j, BACK):
    """Of two blocks side by side, which one comes j-th."""
    return 1 - j if BACK else j


@gluon.jit
def loaded(ring, stage, j: gl.constexpr, BACK: gl.constexpr, U: gl.constexpr, STATE: gl.constexpr):
    """A block's u, transposed, its weights, and the decay over the block."""
    J: gl.constexpr = half(j, BACK)
    vectors = ring.vectors.index(2 * stage + J)
    put = vector(vectors, 2 if BACK else 0, gl.SliceLayout(0, U))
    u = ring.u.index(stage).slice(J * Q, Q).permute((1, 0)).load(U)
    return u, put, end_of(vectors, 2, gl.SliceLayout(1, STATE))


@gluon.jit
def weighted(block):
    """What a block puts into the states, as the left operand of a product; and the decay."""
    u, put, decay = block
    return scaled(u, put), decay


@gluon.jit
def carry(start_ptr, ahead_ptr, ring, walks, OPTIONS: gl.constexpr):
    """The states, block after block. While the product of one is under way, the next is weighted, and the one after it
    comes from shared memory.
    """
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    COLUMNS: gl.constexpr = OPTIONS.COLUMNS
    STAGES: gl.constexpr = OPTIONS.STAGES
    BACK: gl.constexpr = OPTIONS.BACK
    STATE: gl.constexpr = products(COLUMNS)
    U: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    number, cut, w, n = part_of(walks, OPTIONS)
    walk = walk_of(number, walks, OPTIONS)
    state = gl.zeros([CHANNELS, COLUMNS], gl.float32, STATE)
    if start_ptr is not None:
        head, p = slice_of(walk, w, walks, OPTIONS)
        own = ((gl.cast(walk.number, gl.int64) * walks.H + head) * P + p) * N + n
        state = gl.load(start_ptr + own + tile_offsets(CHANNELS, COLUMNS, N, STATE))
    SLICES: gl.constexpr = slices_walked(N)
    ahead_ptr += (gl.cast(cut, gl.int64) * (walks.spans - 1) * SLICES + w) * (CHANNELS * N) + n
    count = blocks_ahead(walk.length, walks) // 2
    if count > 0:
        wait_full(ring, 0)
        u, decay = weighted(loaded(ring, 0, 0, BACK, U, STATE))
        after = loaded(ring, 0, 1, BACK, U, STATE)
        left = walks.span
        for i in range(count):
            stage = stage_of(i, STAGES)
            # The last blocks are loaded once more, and not used.
            following = gl.minimum(i + 1, count - 1)
            for j in gl.static_range(2):
                k = ring.k.index(stage).slice(half(j, BACK) * Q, Q)
                token = warpgroup_mma(u, k, state * decay[:, None], is_async=True)
                if j == 0:
                    wait_full(ring, following)
                u, decay = weighted(after)
                after = loaded(ring, stage_of(following, STAGES), j, BACK, U, STATE)
                state = warpgroup_mma_wait(0, deps=[token])
            release(ring, i)
            left -= 2
            if left == 0:
                gl.store(ahead_ptr + tile_offsets(CHANNELS, COLUMNS, N, STATE), state)
                ahead_ptr += SLICES * CHANNELS * N
                left = walks.span


@gluon.jit(do_not_specialize=["u", "k", "lengths", "spans"])
def ahead(
    u,
    k,
    vectors_ptr,
    start_ptr,
    cu_seqlens_ptr,
    ahead_ptr,
    lengths,
    groups,
    spans,
    OPTIONS: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """What enters all spans but the first of the walks that are cut, fp32: (walks, spans - 1, slices, 64, N).

    Everything else is as in `walk`.
    """
    P: gl.constexpr = OPTIONS.P
    N: gl.constexpr = OPTIONS.N
    COLUMNS: gl.constexpr = OPTIONS.COLUMNS
    STAGES: gl.constexpr = OPTIONS.STAGES
    H = groups.H
    DTYPE: gl.constexpr = u.pointer.dtype.element_ty
    STEPS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SLOT, CHANNELS], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SLOT, COLUMNS], DTYPE)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    full, empty = full_and_empty(STAGES, 1)
    ring = AheadRing(
        gl.allocate_shared_memory(DTYPE, [STAGES, SLOT, CHANNELS], STEPS),
        gl.allocate_shared_memory(DTYPE, [STAGES, SLOT, COLUMNS], WIDE),
        gl.allocate_shared_memory(gl.float32, [STAGES * 2, VECTORS * Q], LINE),
        full,
        empty,
    )
    walks = Walks(lengths.T, lengths.sequences, H, groups.G, spans.whole, spans.span, spans.spans, cu_seqlens_ptr)
    number, _, _, _ = part_of(walks, OPTIONS)
    walk = walk_of(number, walks, OPTIONS)
    steps = gl.maximum(walk.length, 1)
    u_rows = rows_at(u, walk.row, walk.first, 0, UNIT)
    k_rows = rows_at(k, walk.row, walk.first, walk.group, UNIT)
    vectors_ptr += gl.cast(walk.slot, gl.int64) * H * (2 * VECTORS * Q)
    numbers = gl.cdiv(steps, SLOT) * H * (2 * VECTORS * Q)
    arrays = AheadArrays(
        tma.make_tensor_descriptor(u_rows.pointer, [steps, H * P], [u.step * UNIT, 1], [SLOT, CHANNELS], STEPS),
        tma.make_tensor_descriptor(k_rows.pointer, [steps, N], [k.step * UNIT, 1], [SLOT, COLUMNS], WIDE),
        tma.make_tensor_descriptor(vectors_ptr, [numbers], [1], [VECTORS * Q], LINE),
    )
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [(carry, (start_ptr, ahead_ptr, ring, walks, OPTIONS)), (fetch, (arrays, ring, walks, OPTIONS))],
        [1],
        [FETCH_REGISTERS],
    )
