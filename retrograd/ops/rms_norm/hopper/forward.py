"""RMSNorm, forward, for long rows. Symbols and formulas: ../README.md.

One program a multiprocessor walks over every `programs`-th row. RING rows of shared memory are filled by asynchronous
copies, RING - 1 rows ahead; a row is read from there twice, first for its squares, then for y. The weight stays in
registers from the first row to the last. A thread holds 8 neighbouring columns, 16 bytes, of each tile of a row.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from retrograd.core.kernels.gluon import block_barrier, copy_async


@gluon.jit
def column_numbers(COLUMNS: gl.constexpr, TILE: gl.constexpr):
    """0 to COLUMNS - 1, shaped (COLUMNS / 8, 8)."""
    lanes = gl.arange(0, COLUMNS // 8, gl.SliceLayout(1, TILE))
    return lanes[:, None] * 8 + gl.arange(0, 8, gl.SliceLayout(0, TILE))[None, :]


@gluon.jit
def load_columns(ptr, columns, start: gl.constexpr, stop: gl.constexpr, N: gl.constexpr):
    """Columns start to stop of an array (N,) as fp32; past N they are 0."""
    if stop <= N:
        return gl.load(ptr + start + columns).to(gl.float32)
    else:
        return gl.load(ptr + start + columns, mask=columns < N - start, other=0.0).to(gl.float32)


@gluon.jit
def store_columns(ptr, values, columns, start: gl.constexpr, stop: gl.constexpr, N: gl.constexpr):
    """Write columns start to stop of an array (N,), in its dtype."""
    values = values.to(ptr.dtype.element_ty)
    if stop <= N:
        gl.store(ptr + start + columns, values)
    else:
        gl.store(ptr + start + columns, values, mask=columns < N - start)


@gluon.jit
def copy_columns(shared, ptr, columns, start: gl.constexpr, stop: gl.constexpr, N: gl.constexpr):
    """Begin to copy columns start to stop of an array (N,) to shared memory; past N they are filled with 0."""
    if stop <= N:
        copy_async(shared, ptr + start + columns)
    else:
        copy_async(shared, ptr + start + columns, mask=columns < N - start)


@gluon.jit
def to_fp32(x):
    """Convert to fp32; of bf16, a pair in two instructions where the compiler's own conversion takes three."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=gl.float32, is_pure=True, pack=2
        )
    else:
        return x.to(gl.float32)


@gluon.jit
def copy_row(ring, x_ptr, row, stage, rows, columns, WIDTH: gl.constexpr, N: gl.constexpr):
    """Begin to copy a row to its stage: one group of copies, empty where there is no such row."""
    if row < rows:
        for t in gl.static_range((N + WIDTH - 1) // WIDTH):
            copy_columns(ring[t].index(stage), x_ptr + row.to(gl.int64) * N, columns, t * WIDTH, (t + 1) * WIDTH, N)
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
    RING: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """y = x * rstd * (weight + offset), and rstd. Rows are dense and 16-byte aligned, N is a multiple of 8."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    WIDTH: gl.constexpr = 256 * gl.num_warps()  # columns of a tile
    tiles: gl.constexpr = (N + WIDTH - 1) // WIDTH
    gl.static_assert(N % 8 == 0)
    TILE: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [gl.num_warps(), 1], [1, 0])
    DENSE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    columns = column_numbers(WIDTH, TILE)
    program = gl.program_id(0)
    programs = gl.num_programs(0)

    # A buffer for each tile: between accesses to one buffer, at whatever stages, the compiler puts barriers.
    ring: gl.tuple = ()
    for _ in gl.static_range(tiles):
        ring += (gl.allocate_shared_memory(x_ptr.dtype.element_ty, [RING, WIDTH // 8, 8], DENSE),)
    weight: gl.tuple = ()  # asked for before the rows, else it arrives after all of them
    for t in gl.static_range(tiles):
        weight += (load_columns(weight_ptr, columns, t * WIDTH, (t + 1) * WIDTH, N) + weight_offset,)
    for i in gl.static_range(RING):
        copy_row(ring, x_ptr, program + i * programs, i, rows, columns, WIDTH, N)

    stage = 0
    for row in range(program, rows, programs):
        async_copy.wait_group(RING - 1)  # copies form one group a row, RING of them from this row on
        squares = gl.zeros([WIDTH // 8], gl.float32, gl.SliceLayout(1, TILE))
        for t in gl.static_range(tiles):
            x = to_fp32(ring[t].index(stage).load(TILE))
            squares += gl.sum(x * x, axis=1)
        rstd = gl.rsqrt(gl.sum(squares, axis=0) * (1.0 / N) + eps)
        gl.store(rstd_ptr + row, rstd)
        block_barrier()  # else newer compilers keep the row in registers between the passes, and spill
        for t in gl.static_range(tiles):
            x = to_fp32(ring[t].index(stage).load(TILE))
            store_columns(
                y_ptr + gl.cast(row, gl.int64) * N, x * rstd * weight[t], columns, t * WIDTH, (t + 1) * WIDTH, N
            )
        copy_row(ring, x_ptr, row + RING * programs, stage, rows, columns, WIDTH, N)
        stage = (stage + 1) % RING
