"""RMSNorm, forward, for long rows on Hopper. Symbols and formulas: ../README.md.

One program per multiprocessor walks over every `programs`-th row. A ring of RING rows in shared memory is filled by
asynchronous copies, so that the rows that come next are always on their way; a row is read from there twice, once for
its squares and once for y. The weight stays in registers from the first row to the last.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def load_chunk(ptr, columns, k: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr):
    """Chunk k of an array (N,) as fp32; columns past N read as 0."""
    if (k + 1) * BLOCK_N <= N:
        chunk = gl.load(ptr + k * BLOCK_N + columns)
    else:
        chunk = gl.load(ptr + k * BLOCK_N + columns, mask=columns < N - k * BLOCK_N, other=0.0)
    return chunk.to(gl.float32)


@gluon.jit
def store_chunk(ptr, chunk, columns, k: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr):
    """Write chunk k of an array (N,), in the array's dtype."""
    chunk = chunk.to(ptr.dtype.element_ty)
    if (k + 1) * BLOCK_N <= N:
        gl.store(ptr + k * BLOCK_N + columns, chunk)
    else:
        gl.store(ptr + k * BLOCK_N + columns, chunk, mask=columns < N - k * BLOCK_N)


@gluon.jit
def copy_chunk(shared, ptr, columns, k: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr):
    """Start to copy chunk k of an array (N,) to shared memory; columns past N are filled with 0."""
    if (k + 1) * BLOCK_N <= N:
        async_copy.async_copy_global_to_shared(shared, ptr + k * BLOCK_N + columns)
    else:
        async_copy.async_copy_global_to_shared(shared, ptr + k * BLOCK_N + columns, mask=columns < N - k * BLOCK_N)


@gluon.jit
def copy_row(ring, x_ptr, row, slot, rows, columns, N: gl.constexpr, BLOCK_N: gl.constexpr):
    """Start to copy a row to its slot; one group of copies, empty where the row does not exist."""
    chunks: gl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    if row < rows:
        for k in gl.static_range(chunks):
            copy_chunk(ring[k].index(slot), x_ptr + row.to(gl.int64) * N, columns, k, N, BLOCK_N)
    async_copy.commit_group()


@gluon.jit(do_not_specialize=["rows"])
def forward_ring(
    x_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    eps,
    weight_offset,
    N: gl.constexpr,
    BLOCK_N: gl.constexpr,
    RING: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """y = x * rstd * (weight + offset) and rstd, for dense rows of N columns, N a multiple of 8."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    chunks: gl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    # A thread holds 8 neighbouring columns: 16 bytes of x.
    TILE: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [gl.num_warps(), 1], [1, 0])
    DENSE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    lane = gl.arange(0, BLOCK_N // 8, gl.SliceLayout(1, TILE))
    columns = lane[:, None] * 8 + gl.arange(0, 8, gl.SliceLayout(0, TILE))[None, :]

    program = gl.program_id(0)
    programs = gl.num_programs(0)
    ring = ()
    for k in gl.static_range(chunks):
        ring += (gl.allocate_shared_memory(x_ptr.dtype.element_ty, [RING, BLOCK_N // 8, 8], DENSE),)
    for slot in gl.static_range(RING):
        copy_row(ring, x_ptr, program + slot * programs, slot, rows, columns, N, BLOCK_N)
    weight = ()
    for k in gl.static_range(chunks):
        weight += (load_chunk(weight_ptr, columns, k, N, BLOCK_N) + weight_offset,)

    slot = 0
    for row in range(program, rows, programs):
        async_copy.wait_group(RING - 1)
        squares = gl.zeros([BLOCK_N // 8], gl.float32, gl.SliceLayout(1, TILE))
        for k in gl.static_range(chunks):
            x = ring[k].index(slot).load(TILE).to(gl.float32)
            squares += gl.sum(x * x, axis=1)
        rstd = gl.rsqrt(gl.sum(squares, axis=0) * (1.0 / N) + eps)
        gl.store(rstd_ptr + row, rstd)
        for k in gl.static_range(chunks):
            x = ring[k].index(slot).load(TILE).to(gl.float32)
            store_chunk(y_ptr + row.to(gl.int64) * N, x * rstd * weight[k], columns, k, N, BLOCK_N)
        copy_row(ring, x_ptr, row + RING * programs, slot, rows, columns, N, BLOCK_N)
        slot = (slot + 1) % RING
