"""Selective scan, backward: the adjoint of the states, from the last group of 8 steps to the first."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.gluon import block_barrier

from .channel_sum import add_step, own_layout, selectors, steps_a_tile
from .numerics import LOG2E, stack4
from .steps import forward_step, place_of, rows_of, state_offsets


@gluon.jit
def adjoint_step(t: gl.constexpr, g, dA, sums, before, h, decay, a2, selector, group, N: gl.constexpr,
                 OWN: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    """A step back.

    Returns the gradient of the state before, dA and the sums over channels so far, and three sums over states: y, the
    gradient of delta x, and that of delta log2(e) A through the decay.
    """
    delta = group[0].index(t).load(gl.SliceLayout(1, OWN))[:, None]
    dx = delta * group[1].index(t).load(gl.SliceLayout(1, OWN))[:, None].to(gl.float32)
    gy = group[2].index(t).load(gl.SliceLayout(1, OWN))[:, None]
    b = group[3].index(t).load(gl.SliceLayout(0, OWN))[None, :]
    c = group[4].index(t).load(gl.SliceLayout(0, OWN))[None, :]
    y = gl.sum(h * c, 1)
    g = gl.fma(gy, c, g)  # written out for walk.py, as in `next_state`
    sums = add_step(sums, gy * h, g * dx, selector, t % steps_a_tile(N), N, SPLIT)
    ddx = gl.sum(g * b, 1)
    g = g * decay
    dlog = g * before  # the gradient of delta A
    dA = dlog * delta + dA
    return g, dA, sums, y, ddx, gl.sum(dlog * a2, 1)


@gluon.jit
def walk_half(t: gl.constexpr, h0, g, dA, sums, a2, selector, group, N: gl.constexpr, OWN: gl.constexpr,
              SPLIT: gl.constexpr):  # fmt: skip
    """Steps t + 3 to t, from the state that enters them: states and decays into registers, then the adjoint.

    Sums over channels go to `sums`, and on to a second tile where that holds two steps alone: both are returned.
    """
    h1, e0 = forward_step(t, h0, a2, group[0], group[1], group[3], OWN)
    h2, e1 = forward_step(t + 1, h1, a2, group[0], group[1], group[3], OWN)
    h3, e2 = forward_step(t + 2, h2, a2, group[0], group[1], group[3], OWN)
    h4, e3 = forward_step(t + 3, h3, a2, group[0], group[1], group[3], OWN)
    g, dA, late, y3, u3, l3 = adjoint_step(t + 3, g, dA, sums, h3, h4, e3, a2, selector, group, N, OWN, SPLIT)
    g, dA, late, y2, u2, l2 = adjoint_step(t + 2, g, dA, late, h2, h3, e2, a2, selector, group, N, OWN, SPLIT)
    early = late
    if N == 64:
        early = gl.zeros_like(sums)
    g, dA, early, y1, u1, l1 = adjoint_step(t + 1, g, dA, early, h1, h2, e1, a2, selector, group, N, OWN, SPLIT)
    g, dA, early, y0, u0, l0 = adjoint_step(t, g, dA, early, h0, h1, e0, a2, selector, group, N, OWN, SPLIT)
    return g, dA, late, early, stack4(y0, y1, y2, y3), stack4(u0, u1, u2, u3), stack4(l0, l1, l2, l3)


@gluon.jit
def store_half(results, half: gl.constexpr, y, ddx, dlog):
    """The sums over states of 4 steps, each (channels, 4)."""
    results[0].index(half).permute([1, 0]).store(y)
    results[1].index(half).permute([1, 0]).store(ddx)
    results[2].index(half).permute([1, 0]).store(dlog)


@gluon.jit
def walk_back(
    A_ptr,
    dfinal_state_ptr,
    leaving_ptr,
    dinitial_state_ptr,
    dA_partial_ptr,
    state,
    leaving,
    piece,
    channels,
    is_first,
    is_last,
    length,
    rows,
    entering,
    results,
    full,
    done,
    free,
    N: gl.constexpr,
    BLOCK_D: gl.constexpr,
    KEEP: gl.constexpr,
    PIECE: gl.constexpr,
    MIDDLE: gl.constexpr,
    SPLIT: gl.constexpr,
    WARPS: gl.constexpr,
):
    """From the gradient of the state that leaves a span to that of the one that enters; sums go to `results`.

    Args:
        A_ptr: that of the program's first channel.
        state, leaving, piece: where the program's states begin in arrays (sequences, D, N), in `leaving` and, those of
            the span's first piece, in dA_partial.
        is_first, is_last: whether the span is its sequence's first, and its last.
        length: of the span.
        rows: delta, x, g_y, B and C of every place, in shared memory like all that follows.
        entering: the states that enter a group and, with MIDDLE, its second half.
        results: y, the gradients of delta x and of delta log2(e) A, each in halves, and sums over channels.
        full, done, free: barriers: a chunk is made; a group's results are there; they have been read.
    """
    GROUPS: gl.constexpr = KEEP // 8
    OWN: gl.constexpr = own_layout(BLOCK_D, N, WARPS)
    own = state_offsets(BLOCK_D, N, OWN)
    delta_f, x_f, gy_f, B_f, C_f = rows
    entry_f, middle_f = entering
    sums_f = results[3]
    a2 = gl.load(A_ptr + own) * LOG2E
    selector = selectors(BLOCK_D, N, OWN)
    g = gl.zeros([BLOCK_D, N], gl.float32, OWN)
    if dfinal_state_ptr is not None:
        if is_last:
            g = gl.load(dfinal_state_ptr + state + own).to(gl.float32)
    if (length > 0) & (is_last == 0):
        g = gl.load(leaving_ptr + leaving + own)
    dA = gl.zeros([BLOCK_D, N], gl.float32, OWN)

    chunks = gl.cdiv(length, KEEP)
    for k in range(chunks):
        mbarrier.wait(full, k & 1)
        for i in range(GROUPS):
            place = place_of(k, GROUPS - 1 - i, GROUPS)
            group = (
                rows_of(delta_f, place, BLOCK_D),
                rows_of(x_f, place, BLOCK_D),
                rows_of(gy_f, place, BLOCK_D),
                rows_of(B_f, place, N),
                rows_of(C_f, place, N),
            )
            if MIDDLE:
                h4 = middle_f.index(place).load(OWN)
            else:
                h4 = entry_f.index(place).load(OWN)
                for t in gl.static_range(4):
                    h4, _ = forward_step(t, h4, a2, group[0], group[1], group[3], OWN)
            zeros = gl.zeros([BLOCK_D, N], gl.float32, OWN)
            g, dA, sums3, sums2, y, ddx, dlog = walk_half(4, h4, g, dA, zeros, a2, selector, group, N, OWN, SPLIT)
            mbarrier.wait(free, (k * GROUPS + i + 1) & 1)
            store_half(results, 1, y, ddx, dlog)
            if N == 64:
                sums_f.index(3).store(sums3)
                sums_f.index(2).store(sums2)
            if N == 32:
                sums_f.index(1).store(sums2)
            h0 = entry_f.index(place).load(OWN)
            more = sums2 if N <= 16 else zeros  # a tile that has room for all 8 steps
            g, dA, sums1, sums0, y, ddx, dlog = walk_half(0, h0, g, dA, more, a2, selector, group, N, OWN, SPLIT)
            store_half(results, 0, y, ddx, dlog)
            if N == 64:
                sums_f.index(1).store(sums1)
            sums_f.index(0).store(sums0)
            block_barrier()
            mbarrier.arrive(done, count=1)
        chunk = chunks - 1 - k
        if chunk % (PIECE // KEEP) == 0:
            gl.store(dA_partial_ptr + piece + (chunk // (PIECE // KEEP)).to(gl.int64) * (channels * N) + own, dA)
            dA = gl.zeros([BLOCK_D, N], gl.float32, OWN)

    if dinitial_state_ptr is not None:
        if is_first:
            gl.store(dinitial_state_ptr + state + own, g)
