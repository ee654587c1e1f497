"""Selective scan, backward: the adjoint of the states, from the last group of 8 steps to the first."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.gluon import block_barrier, ex2
from retrograd.core.kernels.rings import acquire, wait_full

from .arrays import Group
from .channel_sum import STEPS, add_step, own_layout, selectors
from .numerics import LOG2E
from .steps import forward_step, rows4, rows_of, stage_of_group, state_offsets


class Row(NamedTuple):
    """Of a step, for each channel: delta, delta x and dy silu(z)."""

    delta: Any
    dx: Any
    gy: Any


class StepBack(NamedTuple):
    """A step that the adjoint goes back: the states before and after it, the decay, and its row."""

    before: Any
    after: Any
    decay: Any
    row: Any


class Half(NamedTuple):
    """Four steps."""

    step0: Any
    step1: Any
    step2: Any
    step3: Any


@gluon.jit
def state_sum(x):
    """Sums over a thread's states, (channels, N // 8)."""
    return gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 8]), 2)


@gluon.jit
def adjoint_step(t: gl.constexpr, g, dA, sums, step, a2, selector, group, SIZES: gl.constexpr, OWN: gl.constexpr):
    """A step back.

    Returns the gradient of the state before, dA and the sums over channels so far, and three sums over states: y, the
    gradient of delta x, and that of delta log2(e) A through the decay.
    """
    delta = step.row.delta[:, None]
    dx = step.row.dx[:, None]
    gy = step.row.gy[:, None]
    b = group.B.index(t).load(gl.SliceLayout(0, OWN))[None, :]
    c = group.C.index(t).load(gl.SliceLayout(0, OWN))[None, :]
    y = state_sum(step.after * c)
    g = gl.fma(gy, c, g)  # written out for walk.py, as in `next_state`
    sums = add_step(sums, gy * step.after, g * dx, selector, t % STEPS, SIZES.split)
    ddx = state_sum(g * b)
    g = g * step.decay
    dlog = g * step.before  # the gradient of delta A
    dA = dlog * delta + dA
    return g, dA, sums, y, ddx, state_sum(dlog * a2)


@gluon.jit
def forward_half(t: gl.constexpr, first, middle, after, stage, a2, group, SIZES: gl.constexpr, OWN: gl.constexpr):
    """Steps t to t + 3 from the state that enters them."""
    delta0, delta1, delta2, delta3 = rows4(group.delta, t, OWN, SIZES)
    dx0, dx1, dx2, dx3 = rows4(group.dx, t, OWN, SIZES)
    gy0, gy1, gy2, gy3 = rows4(group.gy, t, OWN, SIZES)
    h1, e0 = forward_step(t, first, a2, delta0, dx0, group, OWN)
    if SIZES.every == 2:
        e1 = ex2(delta1[:, None] * a2)
        h2 = middle.index(stage).load(OWN)
    else:
        h2, e1 = forward_step(t + 1, h1, a2, delta1, dx1, group, OWN)
    h3, e2 = forward_step(t + 2, h2, a2, delta2, dx2, group, OWN)
    if SIZES.every == 2 and t == 0:
        e3 = ex2(delta3[:, None] * a2)
        h4 = after.index(stage).load(OWN)
    else:
        h4, e3 = forward_step(t + 3, h3, a2, delta3, dx3, group, OWN)
    return Half(
        StepBack(first, h1, e0, Row(delta0, dx0, gy0)),
        StepBack(h1, h2, e1, Row(delta1, dx1, gy1)),
        StepBack(h2, h3, e2, Row(delta2, dx2, gy2)),
        StepBack(h3, h4, e3, Row(delta3, dx3, gy3)),
    )


@gluon.jit
def early_half(blocks, stage, a2, group, SIZES: gl.constexpr, OWN: gl.constexpr):
    """`forward_half` of the first half of a group."""
    entering = blocks.entering
    h0 = entering.at0.index(stage).load(OWN)
    return forward_half(0, h0, entering.at2, entering.at4, stage, a2, group, SIZES, OWN)


@gluon.jit
def adjoint_half(t: gl.constexpr, half, g, dA, a2, selector, group, SIZES: gl.constexpr, OWN: gl.constexpr):
    """Steps t + 3 to t of the adjoint, from what `forward_half` returned.

    Returns the gradient of the state before, dA, the tiles of sums over channels one above the other, and the sums over
    states of `adjoint_step`.
    """
    zeros = gl.zeros_like(g)
    g, dA, late, y3, u3, l3 = adjoint_step(t + 3, g, dA, zeros, half.step3, a2, selector, group, SIZES, OWN)
    g, dA, late, y2, u2, l2 = adjoint_step(t + 2, g, dA, late, half.step2, a2, selector, group, SIZES, OWN)
    g, dA, early, y1, u1, l1 = adjoint_step(t + 1, g, dA, zeros, half.step1, a2, selector, group, SIZES, OWN)
    g, dA, early, y0, u0, l0 = adjoint_step(t, g, dA, early, half.step0, a2, selector, group, SIZES, OWN)
    return g, dA, above(early, late), steps4(y0, y1, y2, y3), steps4(u0, u1, u2, u3), steps4(l0, l1, l2, l3)


@gluon.jit
def steps4(a, b, c, d):
    """Four (channels, parts) as (channels, parts, 4)."""
    return gl.join(gl.join(a, c), gl.join(b, d)).reshape([a.shape[0], a.shape[1], 4])


@gluon.jit
def above(a, b):
    """Two tiles (rows, columns) as one (2 rows, columns)."""
    return gl.join(a, b).permute([2, 0, 1]).reshape([2 * a.shape[0], a.shape[1]])


@gluon.jit
def store_half(results, half: gl.constexpr, sums, y, ddx, dlog):
    """The sums of 4 steps: over channels, and over states, each (channels, parts, 4)."""
    results.y.index(half).permute([2, 1, 0]).store(y)
    results.ddx.index(half).permute([2, 1, 0]).store(ddx)
    results.dlog.index(half).permute([2, 1, 0]).store(dlog)
    results.sums.index(half).store(sums)


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
    # The states of a group's first half before the results of its second are stored: the compiler moves no loads past
    # these. Where the states in between are many, registers do not suffice.
    AHEAD: gl.constexpr = SIZES.every <= 4
    OWN: gl.constexpr = own_layout(BLOCK_D, N, SIZES.warps)
    own = state_offsets(BLOCK_D, N, OWN)
    steps = groups.blocks.steps
    entering = groups.blocks.entering
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
            stage = stage_of_group(k, GROUPS - 1 - i, SIZES)
            group = Group(
                steps.delta.index(stage),
                steps.x.index(stage),
                steps.dx.index(stage),
                steps.gy.index(stage),
                rows_of(steps.B, stage, N),
                rows_of(steps.C, stage, N),
                None,
            )
            if SIZES.every <= 4:
                h4 = entering.at4.index(stage).load(OWN)
            else:
                h4 = entering.at0.index(stage).load(OWN)
                delta, dx = rows4(group.delta, 0, OWN, SIZES), rows4(group.dx, 0, OWN, SIZES)
                for t in gl.static_range(4):
                    h4, _ = forward_step(t, h4, a2, delta[t], dx[t], group, OWN)
            late = forward_half(4, h4, entering.at6, None, stage, a2, group, SIZES, OWN)
            g, dA, sums, y, ddx, dlog = adjoint_half(4, late, g, dA, a2, selector, group, SIZES, OWN)
            if AHEAD:
                early = early_half(groups.blocks, stage, a2, group, SIZES, OWN)
            acquire(results, k * GROUPS + i)
            store_half(results.blocks, 1, sums, y, ddx, dlog)
            if not AHEAD:
                early = early_half(groups.blocks, stage, a2, group, SIZES, OWN)
            g, dA, sums, y, ddx, dlog = adjoint_half(0, early, g, dA, a2, selector, group, SIZES, OWN)
            store_half(results.blocks, 0, sums, y, ddx, dlog)
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
