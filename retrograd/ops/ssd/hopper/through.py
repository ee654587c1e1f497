"""SSD, backward, for Hopper: what `pairs` computes through the states at a slot's borders. Symbols: ../README.md.

    r = rows state   (step, state);    sum over slices of factor r;    a slice's own sums: scale (left . r)

So one product a slice gives both. Its states come in parts, lest all of its results are in registers at once.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import block_barrier, ex2
from retrograd.core.kernels.numerics import forget
from retrograd.core.kernels.rings import release, stage_of, wait_full
from retrograd.core.kernels.warpgroups import end_of, in_fp32, products, vector

from .blocks import SLOT, Q
from .product import part_sums

PART = gl.constexpr(64)  # states of a product


@gluon.jit
def part_of(memory, j: gl.constexpr):
    """The j-th part of the columns, which are states."""
    return memory.slice(j * PART, PART, dim=1)


@gluon.jit
def begin_by_states(rows, state, j: gl.constexpr):
    """Begin rows state, for the j-th part of the states."""
    none = gl.zeros([Q, PART], gl.float32, products(PART))
    return warpgroup_mma(rows, part_of(state, j), none, use_acc=False, is_async=True)


@gluon.jit
def left_of(left, j: gl.constexpr):
    """The j-th part of `left`, as a thread holds results of products."""
    OUT: gl.constexpr = products(PART)
    return gl.convert_layout(part_of(left, j).load(gl.DotOperandLayout(0, OUT, 2)), OUT, assert_trivial=True)


@gluon.jit
def by_states(left, rows, state, j: gl.constexpr):
    """Of the j-th part of the states, rows state; and its products with `left`, summed as by `part_sums`."""
    token = begin_by_states(rows, state, j)
    own_left = left_of(left, j)
    found = warpgroup_mma_wait(0, deps=[token])
    return found, part_sums(found * in_fp32(own_left))


@gluon.jit
def add_through(W: gl.constexpr, results, begin, end, ring, shared, OPTIONS: gl.constexpr):
    """Block W's rows of some slices, of 256 states: their sums over the slices, in four parts. Row sums are stored."""
    STAGES: gl.constexpr = OPTIONS.STAGES
    FOR_B: gl.constexpr = OPTIONS.FOR_B
    BOTH: gl.constexpr = (W == 1) != FOR_B  # the border lies behind the other block
    OUT: gl.constexpr = products(PART)
    ROW: gl.constexpr = gl.SliceLayout(1, OUT)
    ROWS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    sums = results.sums
    acc0 = gl.zeros([Q, PART], gl.float32, OUT)
    acc1 = gl.zeros([Q, PART], gl.float32, OUT)
    acc2 = gl.zeros([Q, PART], gl.float32, OUT)
    acc3 = gl.zeros([Q, PART], gl.float32, OUT)
    SUMS: gl.constexpr = gl.SliceLayout(1, part_sums(acc0).type.layout)
    for i in range(begin, end):
        stage = stage_of(i, STAGES)
        wait_full(ring, i)
        near = ring.vectors.index(stage * 2 + W)
        far = ring.vectors.index(stage * 2 + 1 - W)
        rows = ring.rows.index(stage).slice(W * Q, Q).load(ROWS)
        if FOR_B:
            scale = ex2(end_of(near, 1, ROW) - vector(near, 1, ROW))
        else:
            scale = vector(near, 2, ROW)
        if BOTH:
            scale *= end_of(far, 2, ROW)
        factor = (scale * vector(near, 3, ROW) if FOR_B else scale)[:, None]
        left = shared.left.index(2 * W)
        state = ring.states.index(2 * stage)
        found, through = by_states(left, rows, state, 0)
        acc0 += found * factor
        found, more = by_states(left, rows, state, 1)
        through += more
        acc1 += found * factor
        left = shared.left.index(2 * W + 1)
        state = ring.states.index(2 * stage + 1)
        found, more = by_states(left, rows, state, 0)
        through += more
        acc2 += found * factor
        found, more = by_states(left, rows, state, 1)
        # A barrier alone does not wait until rows and vectors have been read.
        fence_async_shared()
        block_barrier()
        release(ring, i)
        through += more
        acc3 += found * factor
        sum_of_row = gl.sum(through, 1) * gl.convert_layout(scale, SUMS, assert_trivial=True)
        t = results.at + (forget(i) * (2 * SLOT) + W * Q + gl.arange(0, Q, SUMS))
        zero = gl.zeros([Q], gl.float32, SUMS)
        if FOR_B:
            gl.store(sums.sources + t, zero)
            gl.store(sums.after + t, sum_of_row)
        else:
            gl.store(sums.targets + t, sum_of_row)
            gl.store(sums.own + t, zero)
            gl.store(sums.dots + t, zero)
    return acc0, acc1, acc2, acc3
