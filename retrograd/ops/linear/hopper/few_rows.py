"""Products of few rows with a matrix, which is the left operand, so that its rows fill the tensor cores.

A program takes COLUMNS outputs of FEW rows: one warp fetches, a warpgroup multiplies. Few rows take the time of reading
the weights once. Symbols: ../README.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import tma_load
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, acquire, full_and_empty, release, stage_of, wait_full

from .product import operand


@gluon.jit
def fetch_weights(b, ring, i, j, OPERANDS: gl.constexpr, BYTES: gl.constexpr):
    """Ask for the weights of step i, and expect its rows too."""
    _, b_ring = ring.blocks
    stage = acquire(ring, i)
    ready = ring.full.index(stage)
    mbarrier.expect(ready, BYTES)
    if OPERANDS.B:
        tma_load(b, [i * b.block_type.shape[0], j], ready, b_ring.index(stage))
    else:
        tma_load(b, [j, i * b.block_type.shape[1]], ready, b_ring.index(stage))


@gluon.jit
def fetch_rows(a, ring, i, row):
    """Ask for the rows of step i."""
    a_ring, _ = ring.blocks
    stage = stage_of(i, ring.full.shape[0])
    tma_load(a, [row, i * a.block_type.shape[1]], ring.full.index(stage), a_ring.index(stage))


@gluon.jit
def fetch(a, b, ring, row, j, steps, OPERANDS: gl.constexpr, EARLY: gl.constexpr, OVERLAP: gl.constexpr):
    """Copy step after step to shared memory; with EARLY the first weights before the kernel before has ended."""
    BYTES: gl.constexpr = a.block_type.nbytes + b.block_type.nbytes
    ahead = gl.minimum(steps, OPERANDS.STAGES) if EARLY else 0
    for i in range(ahead):
        fetch_weights(b, ring, i, j, OPERANDS, BYTES)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    for i in range(ahead):
        fetch_rows(a, ring, i, row)
    for i in range(ahead, steps):
        fetch_weights(b, ring, i, j, OPERANDS, BYTES)
        fetch_rows(a, ring, i, row)


@gluon.jit
def multiply(bias_ptr, out_ptr, ring, row, j, steps, sizes, FEW: gl.constexpr, OPERANDS: gl.constexpr):
    """Add up the outputs of all rows, and write them."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FEW, 16])
    a_ring, b_ring = ring.blocks
    COLUMNS: gl.constexpr = b_ring.shape[2] if OPERANDS.B else b_ring.shape[1]
    total = gl.zeros([COLUMNS, FEW], gl.float32, SUMS)
    for i in range(steps):
        stage = stage_of(i, OPERANDS.STAGES)
        wait_full(ring, i)
        a = a_ring.index(stage).permute((1, 0))
        total = warpgroup_mma(operand(b_ring.index(stage), OPERANDS.B), a, total, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])
        if i > 0:
            release(ring, i - 1)
    total = warpgroup_mma_wait(0, deps=[total])
    column = j + gl.arange(0, COLUMNS, gl.SliceLayout(1, SUMS))
    rows = row + gl.arange(0, FEW, gl.SliceLayout(0, SUMS))
    if bias_ptr is not None:
        total += gl.load(bias_ptr + column, column < sizes.columns, 0.0).to(gl.float32)[:, None]
    at = rows.to(gl.int64)[None, :] * sizes.columns + column[:, None]
    there = (rows < sizes.rows)[None, :] & (column < sizes.columns)[:, None]
    gl.store(out_ptr + at, total.to(b_ring.dtype), there)


@gluon.jit(do_not_specialize=["sizes"])
def few_rows(
    a,
    b,
    bias_ptr,
    out_ptr,
    sizes,
    FEW: gl.constexpr,
    OPERANDS: gl.constexpr,
    EARLY: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """out[i, j] = sum over r of a[i, r] b[j, r], plus bias[j].

    The blocks of a are (FEW, terms of a step), of b (COLUMNS, terms), or (terms, COLUMNS).
    """
    STAGES: gl.constexpr = OPERANDS.STAGES
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES, a.block_type.shape[0], a.block_type.shape[1]], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, b.block_type.shape[0], b.block_type.shape[1]], b.layout)
    full, empty = full_and_empty(STAGES, 1)
    ring = Ring((a_ring, b_ring), full, empty)
    fence_async_shared()
    COLUMNS: gl.constexpr = b.block_type.shape[1] if OPERANDS.B else b.block_type.shape[0]
    across = gl.cdiv(sizes.columns, COLUMNS)
    j = gl.program_id(0) % across * COLUMNS
    row = gl.program_id(0) // across * FEW
    steps = gl.cdiv(sizes.terms, a.block_type.shape[1])
    gl.warp_specialize(
        [
            (multiply, (bias_ptr, out_ptr, ring, row, j, steps, sizes, FEW, OPERANDS)),
            (fetch, (a, b, ring, row, j, steps, OPERANDS, EARLY, OVERLAP)),
        ],
        [1],
        [56],
    )
