"""Selective scan, backward: what comes after the adjoint of a group of 8 steps."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import block_barrier, ex2
from retrograd.core.kernels.rings import release, wait_full

from .channel_sum import position, steps_a_tile
from .numerics import LN2, LOG2E
from .steps import per_channel, stage_of_group, vector_layout


@gluon.constexpr_function
def sum_layout(tiles, N, warps):
    """(tiles, channels, N): a thread holds an element of every tile, so adding these is its own."""
    return gl.BlockedLayout([tiles, 1, max(1, N // 32)], [1, max(1, 32 // N), min(32, N)], [1, warps, 1], [2, 1, 0])


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
    TILES: gl.constexpr = 8 // steps_a_tile(N)
    CW: gl.constexpr = BLOCK_D // WARPS
    VEC: gl.constexpr = vector_layout(BLOCK_D, WARPS)
    SUM: gl.constexpr = sum_layout(WARPS, N, WARPS)
    PAIR: gl.constexpr = gl.SliceLayout(0, SUM)
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    CUBE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    steps = groups.blocks.steps
    done = results.blocks
    t = gl.arange(0, 8, gl.SliceLayout(1, VEC))[:, None]
    d = d0 + gl.arange(0, BLOCK_D, gl.SliceLayout(0, VEC))[None, :]
    step_of, which, state, valid = position(
        gl.arange(0, CW, gl.SliceLayout(1, PAIR))[:, None], gl.arange(0, N, gl.SliceLayout(0, PAIR))[None, :], N
    )
    skip = per_channel(D_ptr, d0, BLOCK_D, VEC)
    dD = gl.zeros([8, BLOCK_D], gl.float32, VEC)
    dbias = gl.zeros([8, BLOCK_D], gl.float32, VEC)

    blocks = channels // BLOCK_D
    chunks = gl.cdiv(length, SIZES.chunk)
    for number in range(chunks * GROUPS):
        k = number // GROUPS
        j = GROUPS - 1 - number % GROUPS
        at = stage_of_group(k, j, GROUPS)
        time = (chunks - 1 - k) * SIZES.chunk + j * 8
        left = length - time
        wait_full(results, number)
        y = done.y._reinterpret(gl.float32, [8, BLOCK_D], ROWS).load(VEC)
        ddx = done.ddx._reinterpret(gl.float32, [8, BLOCK_D], ROWS).load(VEC)
        dlog = done.dlog._reinterpret(gl.float32, [8, BLOCK_D], ROWS).load(VEC)
        for tile in gl.static_range(TILES):
            sums = gl.sum(done.sums.index(tile)._reinterpret(gl.float32, [WARPS, CW, N], CUBE).load(SUM), 0)
            step = step_of + tile * (8 // TILES)
            line = (row + time) * blocks + d0 // BLOCK_D + (step * blocks).to(gl.int64)  # of (rows, blocks)
            gl.store(gradients.dBC_partial_ptr + line * (2 * N) + which * N + state, sums, mask=valid & (step < left))
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
