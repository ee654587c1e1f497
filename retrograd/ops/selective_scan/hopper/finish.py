"""Selective scan, backward: what comes after the adjoint of a group of 8 steps."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import block_barrier, ex2
from retrograd.core.kernels.rings import exponent, release, wait_full

from .channel_sum import position
from .numerics import LN2, LOG2E
from .steps import per_channel, stage_of_group, vector_layout


@gluon.constexpr_function
def sum_layout(channels, N):
    """(4 channels, N): the sums of quads as walk_back leaves them, all terms of a sum in the same thread."""
    part = (N // 8).bit_length() - 1
    bits, rows = N.bit_length() - 1, channels.bit_length() - 1
    registers = [[0, 1 << i] for i in range(part)] + [[1 << i, 0] for i in range(2, rows)]
    lanes = [[0, 1 << i] for i in range(part, bits)] + [[1, 0], [2, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[channels, 0], [2 * channels, 0]], [], [4 * channels, N])


@gluon.constexpr_function
def result_layout(N):
    """(16, N): what is left of `sum_layout` after the sums."""
    part, bits = (N // 8).bit_length() - 1, N.bit_length() - 1
    lanes = [[0, 1 << i] for i in range(part, bits)] + [[1, 0], [2, 0]]
    return gl.DistributedLinearLayout([[0, 1 << i] for i in range(part)], lanes, [[4, 0], [8, 0]], [], [16, N])


@gluon.constexpr_function
def parts_layout(channels, parts, warps):
    """(8, parts, channels): all parts of what `vector_layout` gives a thread."""
    wide = max(1, channels // (4 * warps))
    return gl.BlockedLayout([1, parts, wide], [32 * wide // channels, 1, channels // wide], [warps, 1, 1], [2, 1, 0])


@gluon.jit
def over_states(memory, BLOCK_D: gl.constexpr, N: gl.constexpr, WARPS: gl.constexpr):
    """Sums over all states (8, channels), from those of the threads that share a channel."""
    PARTS: gl.constexpr = N // 8
    CUBE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    x = memory._reinterpret(gl.float32, [8, PARTS, BLOCK_D], CUBE).load(parts_layout(BLOCK_D, PARTS, WARPS))
    if PARTS >= 2:
        x = gl.sum(x.reshape([8, 2, PARTS // 2, BLOCK_D]), 1)
    if PARTS >= 4:
        x = gl.sum(x.reshape([8, 2, PARTS // 4, BLOCK_D]), 1)
    if PARTS >= 8:
        x = gl.sum(x.reshape([8, 2, PARTS // 8, BLOCK_D]), 1)
    return gl.convert_layout(x.reshape([8, BLOCK_D]), vector_layout(BLOCK_D, WARPS), assert_trivial=True)


@gluon.jit
def over_channels(memory, BLOCK_D: gl.constexpr, N: gl.constexpr, WARPS: gl.constexpr):
    """Sums over all channels (16, N), from those over quads of lanes; `position` tells which."""
    STATE: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])
    x = memory._reinterpret(gl.float32, [4 * BLOCK_D, N], STATE).load(sum_layout(BLOCK_D, N))
    QUADS: gl.constexpr = BLOCK_D // WARPS // 4  # of the same states in a warp
    if QUADS >= 2:
        x = gl.sum(x.reshape([4 * WARPS, QUADS // 2, 2, 4, N]), 2)
    if QUADS >= 4:
        x = gl.sum(x.reshape([4 * WARPS, QUADS // 4, 2, 4, N]), 2)
    if QUADS >= 8:
        x = gl.sum(x.reshape([4 * WARPS, QUADS // 8, 2, 4, N]), 2)
    x = gl.sum(x.reshape([4, WARPS, 4, N]), 1)
    return gl.convert_layout(x.reshape([16, N]), result_layout(N), assert_trivial=True)


@gluon.jit
def one_minus_exp(delta):
    """1 - exp(-delta) for delta >= 0, which is softplus' slope where delta is its value."""
    p = delta * 0.0001984127 - 0.0013888889
    p = p * delta + 0.0083333333
    p = p * delta - 0.041666667
    p = p * delta + 0.16666667
    p = p * delta - 0.5
    p = p * delta + 1.0
    return gl.where(delta < 0.4, p * delta, 1.0 - ex2(delta * -LOG2E))


@gluon.jit
def finish(
    D_ptr,
    gradients,
    d0,
    piece,
    row,
    length,
    channels,
    groups,
    results,
    SIZES: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
):
    """Write the gradients of the groups that `walk_back` has done.

    Args:
        D_ptr: the parameter D, or None.
        gradients: where they go.
        d0, channels: the program's first channel, and all channels.
        piece: the slot of the span's first piece.
        row, length: the span's first row and its length.
        groups: the ring of groups that `make` fills, whose blocks are empty after this.
        results: the ring of results that `walk_back` fills.
    """
    N: gl.constexpr = SIZES.N
    BLOCK_D: gl.constexpr = SIZES.channels
    WARPS: gl.constexpr = SIZES.warps
    GROUPS: gl.constexpr = SIZES.chunk // 8
    VEC: gl.constexpr = vector_layout(BLOCK_D, WARPS)
    SUM: gl.constexpr = result_layout(N)
    steps = groups.blocks.steps
    done = results.blocks
    t = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None]
    d = d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))[None, :]
    step, which, state = position(
        gl.arange(0, 16, gl.SliceLayout(1, SUM))[:, None], gl.arange(0, N, gl.SliceLayout(0, SUM))[None, :]
    )
    skip = per_channel(D_ptr, d0, BLOCK_D, VEC)
    dD = gl.zeros([8, BLOCK_D], gl.float32, VEC)
    dbias = gl.zeros([8, BLOCK_D], gl.float32, VEC)

    blocks = channels // BLOCK_D
    chunks = gl.cdiv(length, SIZES.chunk)
    for number in range(chunks * GROUPS):
        k = number >> exponent(GROUPS)
        j = GROUPS - 1 - (number & (GROUPS - 1))
        at = stage_of_group(k, j, SIZES)
        time = (chunks - 1 - k) * SIZES.chunk + j * 8
        left = length - time
        wait_full(results, number)
        y = over_states(done.y, BLOCK_D, N, WARPS)
        ddx = over_states(done.ddx, BLOCK_D, N, WARPS)
        dlog = over_states(done.dlog, BLOCK_D, N, WARPS)
        sums = over_channels(done.sums, BLOCK_D, N, WARPS)
        line = (row + time) * blocks + d0 // BLOCK_D + (step * blocks).to(gl.int64)  # of (rows, blocks)
        gl.store(gradients.dBC_partial_ptr + line * (2 * N) + which * N + state, sums, mask=step < left)
        delta = steps.delta.index(at).load(VEC)
        x = steps.x.index(at).load(VEC).to(gl.float32)
        gy = steps.gy.index(at).load(VEC)
        if steps.gate is not None:
            gate = steps.gate.index(at).load(VEC)
        block_barrier()
        release(results, number)
        release(groups, number)
        ddt = dlog * LN2 + ddx * x
        if DT_SOFTPLUS:
            ddt = ddt * one_minus_exp(delta)
        ddt = gl.where(t < left, ddt, 0.0)
        to = (row + time) * channels + (t * (channels // 8)).to(gl.int64) * 8 + d
        gl.store(gradients.dx_ptr + to, (gy * skip + ddx * delta).to(gradients.dx_ptr.dtype.element_ty), mask=t < left)
        gl.store(gradients.ddt_ptr + to, ddt.to(gradients.ddt_ptr.dtype.element_ty), mask=t < left)
        if steps.gate is not None:
            dz = gate * (y + skip * x)
            gl.store(gradients.dz_ptr + to, dz.to(gradients.dz_ptr.dtype.element_ty), mask=t < left)
        dD += gy * x
        dbias += ddt
        if time % SIZES.piece == 0:
            sums_at = (piece + time // SIZES.piece) * channels + d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))
            if gradients.dD_partial_ptr is not None:
                gl.store(gradients.dD_partial_ptr + sums_at, gl.sum(dD, 0))
            if gradients.ddt_bias_partial_ptr is not None:
                gl.store(gradients.ddt_bias_partial_ptr + sums_at, gl.sum(dbias, 0))
            dD = gl.zeros([8, BLOCK_D], gl.float32, VEC)
            dbias = gl.zeros([8, BLOCK_D], gl.float32, VEC)
