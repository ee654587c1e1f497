"""SSD: what enters the spans of a walk, by a walk of the states alone. Symbols: ../README.md.

A program takes some states of a slice, so that there are programs enough, and that a block takes little time: the
blocks come one after the other. The arithmetic of a state is that of walk.py to the bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.gluon import copy_async
from retrograd.core.numerics import let_next_start, wait_for_previous

from .blocks import CHANNELS, SLICES, VECTORS, Q, copy_rows, products, vector
from .sequences import block_at, slice_of, tile_offsets, walk_of

LAG = gl.constexpr(4)  # blocks that are on their way


@gluon.jit
def part_of(whole, N: gl.constexpr, COLUMNS: gl.constexpr):
    """The walk, which of those that are cut it is, the slice, and the first of the states."""
    own = gl.program_id(0) // (N // COLUMNS)
    return whole + own // SLICES, own // SLICES, own % SLICES, gl.program_id(0) % (N // COLUMNS) * COLUMNS


@gluon.jit
def blocks_ahead(length, span, spans):
    """How many blocks lie before a sequence's last span."""
    return gl.minimum(gl.maximum(gl.cdiv(length, Q) - 1, 0) // span, spans - 1) * span


@gluon.jit
def fetch(
    u_ptr, k_ptr, vectors_ptr, cu_seqlens_ptr, u_s, k_s, put_s, full, done, T, H, G, whole, span, spans, u_strides,
    k_strides, P: gl.constexpr, N: gl.constexpr, COLUMNS: gl.constexpr, UNIT: gl.constexpr, STAGES: gl.constexpr,
    BACK: gl.constexpr,
):  # fmt: skip
    """Copy block after block to shared memory."""
    LINE: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    walk, _, w, n = part_of(whole, N, COLUMNS)
    slice, slices, group, _, row, first, length, place = walk_of(walk, T, H, G, cu_seqlens_ptr, P)
    head, p = slice_of(slice + w, slices, group, H, G, P)
    u_ptr += (row * u_strides[0] + first.to(gl.int64) * u_strides[1] + head * u_strides[2]) * UNIT + p
    k_ptr += (row * k_strides[0] + first.to(gl.int64) * k_strides[1] + group * k_strides[2]) * UNIT + n
    blocks = blocks_ahead(length, span, spans)
    for i in range(blocks):
        c = block_at(i, length, BACK)
        stage = i % STAGES
        step = (c * Q).to(gl.int64)
        mbarrier.wait(done.index(stage), ((i // STAGES) & 1) ^ 1)
        copy_rows(k_s.index(stage), k_ptr + step * k_strides[1] * UNIT, k_strides[1], length - c * Q, UNIT, 4)
        copy_rows(u_s.index(stage), u_ptr + step * u_strides[1] * UNIT, u_strides[1], length - c * Q, UNIT, 4)
        own = vectors_ptr + (((place * 2 + c).to(gl.int64) * H + head) * VECTORS + (2 if BACK else 0)) * Q
        copy_async(put_s.index(stage), own + gl.arange(0, Q, LINE))
        async_copy.commit_group()
        if i >= LAG:
            async_copy.wait_group(LAG)
            fence_async_shared()
            mbarrier.arrive(full.index((i - LAG) % STAGES))
    async_copy.wait_group(0)
    fence_async_shared()
    begun = gl.maximum(blocks - LAG, 0)
    for i in range(begun, blocks):
        mbarrier.arrive(full.index(i % STAGES))


@gluon.jit
def driven_by(u_s, put_s, full, i, blocks, STAGES: gl.constexpr, LAYOUT: gl.constexpr, PRODUCT: gl.constexpr):
    """What a block puts into the states, when it is there; behind the last one, the last."""
    i = gl.minimum(i, blocks - 1)
    stage = i % STAGES
    mbarrier.wait(full.index(stage), (i // STAGES) & 1)
    u = u_s.index(stage).permute((1, 0)).load(LAYOUT)
    put = vector(put_s.index(stage), 0, gl.SliceLayout(0, LAYOUT))
    return gl.convert_layout((u.to(gl.float32) * put[None, :]).to(u.dtype), PRODUCT, assert_trivial=True)


@gluon.jit
def carry(
    vectors_ptr, start_ptr, cu_seqlens_ptr, ahead_ptr, u_s, k_s, put_s, full, done, T, H, G, whole, span, spans,
    P: gl.constexpr, N: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, BACK: gl.constexpr,
):  # fmt: skip
    """The states, block after block."""
    STATE: gl.constexpr = products(COLUMNS)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, products(Q), 2)
    STATE_LEFT: gl.constexpr = gl.DotOperandLayout(0, STATE, 2)
    walk, cut, w, n = part_of(whole, N, COLUMNS)
    slice, slices, group, number, _, _, length, place = walk_of(walk, T, H, G, cu_seqlens_ptr, P)
    head, p = slice_of(slice + w, slices, group, H, G, P)
    state = gl.zeros([CHANNELS, COLUMNS], gl.float32, STATE)
    if start_ptr is not None:
        own = ((number.to(gl.int64) * H + head) * P + p) * N + n
        state = gl.load(start_ptr + own + tile_offsets(CHANNELS, COLUMNS, N, STATE))
    ahead_ptr += (cut.to(gl.int64) * (spans - 1) * SLICES + w) * (CHANNELS * N) + n
    blocks = blocks_ahead(length, span, spans)
    vectors_ptr += (place.to(gl.int64) * 2 * H + head) * (VECTORS * Q) + 3 * Q - 1
    if blocks > 0:
        driven = driven_by(u_s, put_s, full, 0, blocks, STAGES, LEFT, STATE_LEFT)
        decay = gl.load(vectors_ptr + block_at(0, length, BACK).to(gl.int64) * H * (VECTORS * Q))
        for i in range(blocks):
            state = warpgroup_mma(driven, k_s.index(i % STAGES), state * decay, is_async=True)
            driven = driven_by(u_s, put_s, full, i + 1, blocks, STAGES, LEFT, STATE_LEFT)
            c = block_at(gl.minimum(i + 1, blocks - 1), length, BACK)
            decay = gl.load(vectors_ptr + c.to(gl.int64) * H * (VECTORS * Q))
            state = warpgroup_mma_wait(0, deps=[state])
            mbarrier.arrive(done.index(i % STAGES))
            if (i + 1) % span == 0:
                part = (i + 1) // span - 1
                at = ahead_ptr + part.to(gl.int64) * (SLICES * CHANNELS * N)
                gl.store(at + tile_offsets(CHANNELS, COLUMNS, N, STATE), state)


@gluon.jit(do_not_specialize=["T", "whole", "span", "spans", "u_strides", "k_strides"])
def ahead(
    u_ptr,
    k_ptr,
    vectors_ptr,
    start_ptr,
    cu_seqlens_ptr,
    ahead_ptr,
    T,
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
    OVERLAP: gl.constexpr,
):
    """What enters all spans but the first of the walks from number `whole` on: (walks, spans - 1, 2, 64, N), fp32.

    Everything else is as in `walk`.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    DTYPE: gl.constexpr = u_ptr.dtype.element_ty
    STEPS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, CHANNELS], DTYPE)
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([Q, COLUMNS], DTYPE)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    u_s = gl.allocate_shared_memory(DTYPE, [STAGES, Q, CHANNELS], STEPS)
    k_s = gl.allocate_shared_memory(DTYPE, [STAGES, Q, COLUMNS], WIDE)
    put_s = gl.allocate_shared_memory(gl.float32, [STAGES, Q], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    done = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(done.index(i), count=1)
    gl.warp_specialize(
        [
            (carry, (vectors_ptr, start_ptr, cu_seqlens_ptr, ahead_ptr, u_s, k_s, put_s, full, done, T, H, G, whole,
                     span, spans, P, N, COLUMNS, STAGES, BACK)),
            (fetch, (u_ptr, k_ptr, vectors_ptr, cu_seqlens_ptr, u_s, k_s, put_s, full, done, T, H, G, whole, span,
                     spans, u_strides, k_strides, P, N, COLUMNS, UNIT, STAGES, BACK)),
        ],
        [4],
        [96],
    )  # fmt: skip
