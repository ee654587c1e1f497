"""Products of matrices by persistent programs: one warp fetches tiles, two warpgroups multiply. Symbols: ../README.md.

A program takes tile after tile of the result. A tile has two halves of rows, one for each warpgroup; the tile of b is
read by both. An element is one sum along its terms, in order.
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

from retrograd.core.kernels.gluon import tma_load, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, acquire, full_and_empty, release, stage_of, wait_full

from ..device import tile_at
from .arrays import Ends

GROUPS = gl.constexpr(2)  # warpgroups that multiply


@gluon.constexpr_function
def accumulators(columns):
    """The layout of the sums of one warpgroup: 64 rows at a time."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.jit
def work_of(number, sizes, TILES: gl.constexpr):
    """The row and column of a program's tile, its part of the sums, and that part's first step and number of steps."""
    rows = gl.cdiv(sizes.rows, TILES.ROWS)
    columns = gl.cdiv(sizes.columns, TILES.COLUMNS)
    part = number // (rows * columns)
    row, column = tile_at(number % (rows * columns), rows, columns, TILES.GROUP)
    first = part * sizes.part_steps
    steps = gl.minimum(gl.cdiv(sizes.terms, TILES.TERMS) - first, sizes.part_steps)
    return row, column, part, first, gl.maximum(steps, 0)


@gluon.jit
def fetch(a, b, ring, sizes, count, TILES: gl.constexpr, OPERANDS: gl.constexpr):
    """Copy tile after tile to shared memory; the halves of a before and after b, so that the first group can begin."""
    HALF: gl.constexpr = TILES.ROWS // GROUPS
    a_ring, b_ring = ring.blocks
    n = 0
    for number in range(gl.program_id(0), count, gl.num_programs(0)):
        row, column, _, first, steps = work_of(number, sizes, TILES)
        i = row * TILES.ROWS
        j = column * TILES.COLUMNS
        for k in range(steps):
            r = (first + k) * TILES.TERMS
            stage = acquire(ring, n)
            ready = ring.full.index(stage)
            mbarrier.expect(ready, GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            for half in gl.static_range(GROUPS):
                at = i + half * HALF
                if OPERANDS.A:
                    tma_load(a, [r, at], ready, a_ring.index(GROUPS * stage + half))
                else:
                    tma_load(a, [at, r], ready, a_ring.index(GROUPS * stage + half))
                if half == 0:
                    if OPERANDS.B:
                        tma_load(b, [r, j], ready, b_ring.index(stage))
                    else:
                        tma_load(b, [j, r], ready, b_ring.index(stage))
            n += 1


@gluon.jit
def operand(tile, TRANSPOSED: gl.constexpr):
    """A tile in shared memory, transposed or not."""
    if TRANSPOSED:
        return tile.permute((1, 0))
    else:
        return tile


@gluon.jit
def multiply(HALF_NUMBER: gl.constexpr, ends, staging, ring, sizes, count, TILES: gl.constexpr, OPERANDS: gl.constexpr):
    """Add up one half of the rows of tile after tile, and write it."""
    HALF: gl.constexpr = TILES.ROWS // GROUPS
    COLUMNS: gl.constexpr = TILES.COLUMNS
    SUMS: gl.constexpr = accumulators(COLUMNS)
    a_ring, b_ring = ring.blocks
    n = 0
    for number in range(gl.program_id(0), count, gl.num_programs(0)):
        row, column, part, _, steps = work_of(number, sizes, TILES)
        total = gl.zeros([HALF, COLUMNS], gl.float32, SUMS)
        for k in range(steps):
            stage = stage_of(n, OPERANDS.STAGES)
            wait_full(ring, n)
            a = operand(a_ring.index(GROUPS * stage + HALF_NUMBER), OPERANDS.A)
            b = operand(b_ring.index(stage), not OPERANDS.B)
            total = warpgroup_mma(a, b, total, is_async=True)
            total = warpgroup_mma_wait(1, deps=[total])
            if k > 0:
                release(ring, n - 1)
            n += 1
        total = warpgroup_mma_wait(0, deps=[total])
        if steps > 0:
            release(ring, n - 1)
        i = row * TILES.ROWS + HALF_NUMBER * HALF
        j = column * COLUMNS
        if ends.bias is not None:
            at = j + gl.arange(0, COLUMNS, gl.SliceLayout(0, SUMS))
            total += gl.load(ends.bias + at, at < sizes.columns, 0.0).to(gl.float32)[None, :]
        if ends.partial is not None:
            write_part(ends.partial, total, part, i, j, sizes)
        else:
            write(ends.out, total, staging, i, j)
    if ends.out is not None:
        tma.store_wait(0)


@gluon.jit
def write(out, total, staging, i, j):
    """Round sums and copy them out, one half of the columns after the other, which halves the memory for it."""
    COLUMNS: gl.constexpr = total.shape[1] // 2
    HALF: gl.constexpr = accumulators(COLUMNS)
    left, right = total.reshape([total.shape[0], 2, COLUMNS]).permute(0, 2, 1).split()
    tma.store_wait(0)
    staging.store(gl.convert_layout(left.to(out.dtype), HALF, assert_trivial=True))
    fence_async_shared()
    tma_store(out, [i, j], staging)
    tma.store_wait(0)
    staging.store(gl.convert_layout(right.to(out.dtype), HALF, assert_trivial=True))
    fence_async_shared()
    tma_store(out, [i, j + COLUMNS], staging)


@gluon.jit
def write_part(partial, total, part, i, j, sizes):
    """Write sums in float32 from registers: of a part, so that few are written."""
    SUMS: gl.constexpr = total.type.layout
    rows = i + gl.arange(0, total.shape[0], gl.SliceLayout(1, SUMS))
    columns = j + gl.arange(0, total.shape[1], gl.SliceLayout(0, SUMS))
    at = (gl.cast(part, gl.int64) * sizes.rows + rows)[:, None] * sizes.columns + columns[None, :]
    gl.store(partial + at, total, (rows < sizes.rows)[:, None] & (columns < sizes.columns)[None, :])


@gluon.jit(do_not_specialize=["sizes", "count"])
def product(
    a,
    b,
    bias_ptr,
    out,
    partial_ptr,
    sizes,
    count,
    TILES: gl.constexpr,
    OPERANDS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """out[i, j] = sum over r of a[i, r] b[j, r], plus bias[j]; or parts of the sums, partial (parts, rows, columns).

    `count` tiles of all parts. The blocks of a are (ROWS / 2, TERMS), of b (COLUMNS, TERMS), of out (ROWS / 2,
    COLUMNS / 2); (TERMS, ...) where rows are columns in memory.
    """
    STAGES: gl.constexpr = OPERANDS.STAGES
    a_ring = gl.allocate_shared_memory(
        a.dtype, [GROUPS * STAGES, a.block_type.shape[0], a.block_type.shape[1]], a.layout
    )
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, b.block_type.shape[0], b.block_type.shape[1]], b.layout)
    full, empty = full_and_empty(STAGES, GROUPS)
    ring = Ring((a_ring, b_ring), full, empty)
    fence_async_shared()
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    ends = Ends(bias_ptr, out, partial_ptr)
    if out is not None:
        staging = gl.allocate_shared_memory(
            out.dtype, [GROUPS, out.block_type.shape[0], out.block_type.shape[1]], out.layout
        )
        gl.warp_specialize(
            [
                (multiply, (0, ends, staging.index(0), ring, sizes, count, TILES, OPERANDS)),
                (multiply, (1, ends, staging.index(1), ring, sizes, count, TILES, OPERANDS)),
                (fetch, (a, b, ring, sizes, count, TILES, OPERANDS)),
            ],
            [4, 1],
            [232, 40],
        )
    else:
        gl.warp_specialize(
            [
                (multiply, (0, ends, None, ring, sizes, count, TILES, OPERANDS)),
                (multiply, (1, ends, None, ring, sizes, count, TILES, OPERANDS)),
                (fetch, (a, b, ring, sizes, count, TILES, OPERANDS)),
            ],
            [4, 1],
            [232, 40],
        )
