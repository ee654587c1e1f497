"""Selective scan, backward: the adjoint of the states, from the last group of 8 steps to the first."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.gluon import block_barrier
from retrograd.core.kernels.rings import acquire, wait_full

from .arrays import Group
from .channel_sum import add_step, own_layout, selectors, steps_a_tile
from .numerics import LOG2E, stack4
from .steps import forward_step, rows_of, stage_of_group, state_offsets


@gluon.jit
def adjoint_step(
    t: gl.constexpr, g, dA, sums, before, h, decay, a2, selector, group, SIZES: gl.constexpr, OWN: gl.constexpr
):
    """A step back.

    Returns the gradient of the state before, dA and the sums over channels so far, and three sums over states: y, the
    gradient of delta x, and that of delta log2(e) A through the decay.
    """
    delta = group.delta.index(t).load(gl.SliceLayout(1, OWN))[:, None]
    dx = delta * group.x.index(t).load(gl.SliceLayout(1, OWN))[:, None].to(gl.float32)
    gy = group.gy.index(t).load(gl.SliceLayout(1, OWN))[:, None]
    b = group.B.index(t).load(gl.SliceLayout(0, OWN))[None, :]
    c = group.C.index(t).load(gl.SliceLayout(0, OWN))[None, :]
    y = gl.sum(h * c, 1)
    g = gl.fma(gy, c, g)  # written out for walk.py, as in `next_state`
    sums = add_step(sums, gy * h, g * dx, selector, t % steps_a_tile(SIZES.N), SIZES.N, SIZES.split)
    ddx = gl.sum(g * b, 1)
    g = g * decay
    dlog = g * before  # the gradient of delta A
    dA = dlog * delta + dA
    return g, dA, sums, y, ddx, gl.sum(dlog * a2, 1)


@gluon.jit
def walk_half(t: gl.constexpr, h0, g, dA, sums, a2, selector, group, SIZES: gl.constexpr, OWN: gl.constexpr):
    """Steps t + 3 to t, from the state that enters them: states and decays into registers, then the adjoint.

    Sums over channels go to `sums`, and on to a second tile where that holds two steps alone: both are returned.
    """
    h1, e0 = forward_step(t, h0, a2, group, OWN)
    h2, e1 = forward_step(t + 1, h1, a2, group, OWN)
    h3, e2 = forward_step(t + 2, h2, a2, group, OWN)
    h4, e3 = forward_step(t + 3, h3, a2, group, OWN)
    g, dA, late, y3, u3, l3 = adjoint_step(t + 3, g, dA, sums, h3, h4, e3, a2, selector, group, SIZES, OWN)
    g, dA, late, y2, u2, l2 = adjoint_step(t + 2, g, dA, late, h2, h3, e2, a2, selector, group, SIZES, OWN)
    early = late
    if SIZES.N == 64:
        early = gl.zeros_like(sums)
    g, dA, early, y1, u1, l1 = adjoint_step(t + 1, g, dA, early, h1, h2, e1, a2, selector, group, SIZES, OWN)
    g, dA, early, y0, u0, l0 = adjoint_step(t, g, dA, early, h0, h1, e0, a2, selector, group, SIZES, OWN)
    return g, dA, late, early, stack4(y0, y1, y2, y3), stack4(u0, u1, u2, u3), stack4(l0, l1, l2, l3)


@gluon.jit
def store_half(results, half: gl.constexpr, y, ddx, dlog):
    """The sums over states of 4 steps, each (channels, 4)."""
    results.y.index(half).permute([1, 0]).store(y)
    results.ddx.index(half).permute([1, 0]).store(ddx)
    results.dlog.index(half).permute([1, 0]).store(dlog)


@gluon.jit
def walk_back(A_ptr, pointers, offsets, channels, is_first, is_last, length, groups, results, SIZES: gl.constexpr):
    """From the gradient of the state that leaves a span to that of the one that enters; sums go to `results`.

    Args:
        A_ptr: that of the program's first channel.
        pointers, offsets: gradients of states and of A, and where the program's are.
        channels, length: all channels, and the length of the span.
        is_first, is_last: whether the span is its sequence's first, and its last.
        groups: the ring of groups that `make` fills.
        results: the ring of results, of one block, that `finish` empties.
    """
    N: gl.constexpr = SIZES.N
    BLOCK_D: gl.constexpr = SIZES.channels
    CHUNKS: gl.constexpr = SIZES.piece // SIZES.chunk  # of a piece
    GROUPS: gl.constexpr = SIZES.chunk // 8
    OWN: gl.constexpr = own_layout(BLOCK_D, N, SIZES.warps)
    own = state_offsets(BLOCK_D, N, OWN)
    steps = groups.blocks.steps
    entering = groups.blocks.entering
    sums = results.blocks.sums
    a2 = gl.load(A_ptr + own) * LOG2E
    selector = selectors(BLOCK_D, N, OWN)
    g = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    if pointers.dfinal_state_ptr is not None:
        if is_last:
            g = gl.load(pointers.dfinal_state_ptr + offsets.sequence + own).to(gl.float32)
    if (length > 0) & (is_last == 0):
        g = gl.load(pointers.leaving_ptr + offsets.leaving + own)
    dA = gl.zeros([BLOCK_D, N], gl.float32, OWN)

    chunks = gl.cdiv(length, SIZES.chunk)
    for k in range(chunks):
        wait_full(groups, k)
        for i in range(GROUPS):
            stage = stage_of_group(k, GROUPS - 1 - i, GROUPS)
            group = Group(
                rows_of(steps.delta, stage, BLOCK_D),
                rows_of(steps.x, stage, BLOCK_D),
                rows_of(steps.gy, stage, BLOCK_D),
                rows_of(steps.B, stage, N),
                rows_of(steps.C, stage, N),
                None,
            )
            if SIZES.middle:
                h4 = entering.middle.index(stage).load(OWN)
            else:
                h4 = entering.first.index(stage).load(OWN)
                for t in gl.static_range(4):
                    h4, _ = forward_step(t, h4, a2, group, OWN)
            zeros = gl.zeros([BLOCK_D, N], gl.float32, OWN)
            g, dA, sums3, sums2, y, ddx, dlog = walk_half(4, h4, g, dA, zeros, a2, selector, group, SIZES, OWN)
            acquire(results, k * GROUPS + i)
            store_half(results.blocks, 1, y, ddx, dlog)
            if N == 64:
                sums.index(3).store(sums3)
                sums.index(2).store(sums2)
            if N == 32:
                sums.index(1).store(sums2)
            h0 = entering.first.index(stage).load(OWN)
            more = sums2 if N <= 16 else zeros  # a tile that has room for all 8 steps
            g, dA, sums1, sums0, y, ddx, dlog = walk_half(0, h0, g, dA, more, a2, selector, group, SIZES, OWN)
            store_half(results.blocks, 0, y, ddx, dlog)
            if N == 64:
                sums.index(1).store(sums1)
            sums.index(0).store(sums0)
            block_barrier()
            mbarrier.arrive(results.full.index(0))
        chunk = chunks - 1 - k
        if chunk % CHUNKS == 0:
            piece = (chunk // CHUNKS).to(gl.int64) * (channels * N)
            gl.store(pointers.dA_partial_ptr + offsets.piece + piece + own, dA)
            dA = gl.zeros([BLOCK_D, N], gl.float32, OWN)

    if pointers.dinitial_state_ptr is not None:
        if is_first:
            gl.store(pointers.dinitial_state_ptr + offsets.sequence + own, g)
