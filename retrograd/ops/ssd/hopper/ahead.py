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

from ..device import rows_at
from .blocks import CHANNELS, PLACE, VECTORS, Q, end_of, products, scaled, slices_walked, vector
from .sequences import block_at, slice_of, tile_offsets, walk_of


@gluon.jit
def part_of(plan, N: gl.constexpr, COLUMNS: gl.constexpr):
    """The walk, which of those that are cut it is, its slice, and the first of the states."""
    whole, _, _ = plan
    SLICES: gl.constexpr = slices_walked(N)
    own = gl.program_id(0) // (N // COLUMNS)
    return whole + own // SLICES, own // SLICES, own % SLICES, gl.program_id(0) % (N // COLUMNS) * COLUMNS


@gluon.jit
def blocks_ahead(length, plan):
    """How many blocks lie before a sequence's last span."""
    _, span, spans = plan
    return gl.minimum(gl.maximum(gl.cdiv(length, Q) - 1, 0) // span, spans - 1) * span


@gluon.jit
def fetch(
    arrays, memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, BACK: gl.constexpr,
):  # fmt: skip
    """Copy two blocks after two to shared memory, in the order in which they lie."""
    u, k, vectors = arrays
    u_s, k_s, vectors_s = memory
    full, done = barriers
    _, _, H, _ = sizes
    walk, _, w, n = part_of(plan, N, COLUMNS)
    slice, slices, group, _, _, _, length, _ = walk_of(walk, sizes, cu_seqlens_ptr, P, N)
    head, p = slice_of(slice + w, slices, group, sizes, P)
    for i in range(blocks_ahead(length, plan) // 2):
        c = block_at(2 * i + (1 if BACK else 0), length, BACK)
        stage = i % STAGES
        ready = full.index(stage)
        mbarrier.wait(done.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(ready, u.block_type.nbytes + k.block_type.nbytes + 2 * vectors.block_type.nbytes)
        tma_load(u, [c * Q, head * P + p], ready, u_s.index(stage))
        for j in gl.static_range(2):
            tma_load(vectors, [((c + j) * H + head) * (VECTORS * Q)], ready, vectors_s.index(2 * stage + j))
        tma_load(k, [c * Q, n], ready, k_s.index(stage))


@gluon.constexpr_function
def half(j, BACK):
    """Of two blocks side by side, which one comes j-th."""
    return 1 - j if BACK else j


@gluon.jit
def loaded(stage, j: gl.constexpr, memory, BACK: gl.constexpr, U: gl.constexpr, STATE: gl.constexpr):
    """A block's u, transposed, its weights, and the decay over the block."""
    u_s, _, vectors_s = memory
    J: gl.constexpr = half(j, BACK)
    vectors = vectors_s.index(2 * stage + J)
    put = vector(vectors, 2 if BACK else 0, gl.SliceLayout(0, U))
    u = u_s.index(stage).slice(J * Q, Q).permute((1, 0)).load(U)
    return u, put, end_of(vectors, 2, gl.SliceLayout(1, STATE))


@gluon.jit
def weighted(block):
    """What a block puts into the states, as the left operand of a product; and the decay."""
    u, put, decay = block
    return scaled(u, put), decay


@gluon.jit
def carry(
    start_ptr, ahead_ptr, memory, barriers, sizes, plan, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr,
    COLUMNS: gl.constexpr, STAGES: gl.constexpr, BACK: gl.constexpr,
):  # fmt: skip
    """The states, block after block. While the product of one is under way the next is weighted, and the one behind it
    comes from shared memory.
    """
    _, k_s, _ = memory
    full, done = barriers
    _, _, H, _ = sizes
    _, span, spans = plan
    STATE: gl.constexpr = products(COLUMNS)
    U: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    walk, cut, w, n = part_of(plan, N, COLUMNS)
    slice, slices, group, number, _, _, length, _ = walk_of(walk, sizes, cu_seqlens_ptr, P, N)
    state = gl.zeros([CHANNELS, COLUMNS], gl.float32, STATE)
    if start_ptr is not None:
        head, p = slice_of(slice + w, slices, group, sizes, P)
        own = ((number.to(gl.int64) * H + head) * P + p) * N + n
        state = gl.load(start_ptr + own + tile_offsets(CHANNELS, COLUMNS, N, STATE))
    SLICES: gl.constexpr = slices_walked(N)
    ahead_ptr += (cut.to(gl.int64) * (spans - 1) * SLICES + w) * (CHANNELS * N) + n
    count = blocks_ahead(length, plan) // 2
    if count > 0:
        mbarrier.wait(full.index(0), 0)
        u, decay = weighted(loaded(0, 0, memory, BACK, U, STATE))
        behind = loaded(0, 1, memory, BACK, U, STATE)
        left = span
        for i in range(count):
            stage = i % STAGES
            # Behind the last blocks come they themselves, whose weights nothing meets.
            following = gl.minimum(i + 1, count - 1)
            for j in gl.static_range(2):
                k = k_s.index(stage).slice(half(j, BACK) * Q, Q)
                token = warpgroup_mma(u, k, state * decay[:, None], is_async=True)
                if j == 0:
                    mbarrier.wait(full.index(following % STAGES), (following // STAGES) & 1)
                u, decay = weighted(behind)
                behind = loaded(following % STAGES, j, memory, BACK, U, STATE)
                state = warpgroup_mma_wait(0, deps=[token])
            mbarrier.arrive(done.index(stage))
            left -= 2
            if left == 0:
                gl.store(ahead_ptr + tile_offsets(CHANNELS, COLUMNS, N, STATE), state)
                ahead_ptr += SLICES * CHANNELS * N
                left = span


@gluon.jit(do_not_specialize=["T", "sequences", "whole", "span", "spans", "u_strides", "k_strides"])
def ahead(
    u_ptr,
    k_ptr,
    vectors_ptr,
    start_ptr,
    cu_seqlens_ptr,
    ahead_ptr,
    T,
    sequences,
    H,
    G,
    whole,
    span,
    spans,
    u_strides,
    k_strides,
    P: gl.constexpr,
    N: gl.constexpr,
    COLUMNS: gl.constexpr,
    UNIT: gl.constexpr,
    STAGES: gl.constexpr,
    BACK: gl.constexpr,
    FETCH_REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """What enters all spans but the first of the walks from number `whole` on, fp32: (walks, spans - 1, slices, 64, N).

    Everything else is as in `walk`.
    """
    DTYPE: gl.constexpr = u_ptr.dtype.element_ty
    STEPS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PLACE, CHANNELS], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PLACE, COLUMNS], DTYPE)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    u_s = gl.allocate_shared_memory(DTYPE, [STAGES, PLACE, CHANNELS], STEPS)
    k_s = gl.allocate_shared_memory(DTYPE, [STAGES, PLACE, COLUMNS], WIDE)
    LINE: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    vectors_s = gl.allocate_shared_memory(gl.float32, [STAGES * 2, VECTORS * Q], LINE)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    done = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(done.index(i), count=1)
    sizes = (T, sequences, H, G)
    plan = (whole, span, spans)
    walk, _, _, _ = part_of(plan, N, COLUMNS)
    _, _, group, _, row, first, length, place = walk_of(walk, sizes, cu_seqlens_ptr, P, N)
    steps = gl.maximum(length, 1)
    u_ptr = rows_at(u_ptr, u_strides, row, first, 0, UNIT)
    k_ptr = rows_at(k_ptr, k_strides, row, first, group, UNIT)
    vectors_ptr += place.to(gl.int64) * H * (2 * VECTORS * Q)
    numbers = gl.cdiv(steps, PLACE) * H * (2 * VECTORS * Q)
    u = tma.make_tensor_descriptor(u_ptr, [steps, H * P], [u_strides[1] * UNIT, 1], [PLACE, CHANNELS], STEPS)
    k = tma.make_tensor_descriptor(k_ptr, [steps, N], [k_strides[1] * UNIT, 1], [PLACE, COLUMNS], WIDE)
    vectors = tma.make_tensor_descriptor(vectors_ptr, [numbers], [1], [VECTORS * Q], LINE)
    memory = (u_s, k_s, vectors_s)
    barriers = (full, done)
    # Descriptors are made while the kernel before drains.
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    gl.warp_specialize(
        [
            (carry, (start_ptr, ahead_ptr, memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, COLUMNS, STAGES, BACK)),
            (fetch, ((u, k, vectors), memory, barriers, sizes, plan, cu_seqlens_ptr, P, N, COLUMNS, STAGES, BACK)),
        ],
        [1],
        [FETCH_REGISTERS],
    )
