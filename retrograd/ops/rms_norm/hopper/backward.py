"""RMSNorm, backward, for long rows. Symbols and formulas: ../README.md.

One program a multiprocessor walks over every `programs`-th row, and reads it twice from shared memory: first for c, the
mean of g * x_hat, and for dweight, whose sums stay in registers until the program ends; then for dx. Rows come in
chunks of BLOCK_N columns of s and dy to a ring of STAGES chunks, at least a row; a stage is filled again, with the
chunk STAGES further on, as soon as its dx is made. Shared memory holds weight + offset; tiles for which it has no room
stay in registers. A thread holds 8 neighbouring columns, 16 bytes, of each tile of a row.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .forward import column_numbers, copy_columns, load_columns, store_columns, to_fp32


@gluon.constexpr_function
def split_halves(lanes):
    """Shared layout of a tile (lanes, 8) of fp32: all first halves of 8 columns, then all second ones.

    A thread reads its 8 columns in two parts of 16 bytes; so each part of a warp is contiguous and meets no bank twice.
    """
    along_lanes = [[1 << i, 0] for i in range(lanes.bit_length() - 1)]
    return gl.SharedLinearLayout([[0, 1], [0, 2], *along_lanes, [0, 4]])


@gluon.jit
def copy_chunk(
    s_ring, dy_ring, s_ptr, dy_ptr, row, stage, rows, columns, k: gl.constexpr, BLOCK_N: gl.constexpr, N: gl.constexpr
):
    """Begin to copy chunk k of a row to its stage: one group of copies, empty where there is no such row."""
    if row < rows:
        start = row.to(gl.int64) * N
        copy_columns(s_ring.index(stage), s_ptr + start, columns, k * BLOCK_N, (k + 1) * BLOCK_N, N)
        copy_columns(dy_ring.index(stage), dy_ptr + start, columns, k * BLOCK_N, (k + 1) * BLOCK_N, N)
    async_copy.commit_group()


@gluon.jit
def load_tile(ring, stage, t: gl.constexpr, BLOCK_N: gl.constexpr, TILE: gl.constexpr):
    """Tile t of a row, as fp32, from the stage that holds the tile's chunk."""
    lanes: gl.constexpr = 32 * gl.num_warps()
    return to_fp32(ring.index(stage).slice(t * lanes % (BLOCK_N // 8), lanes).load(TILE))


@gluon.jit
def weight_tile(shared, weight, t: gl.constexpr, SHARED: gl.constexpr, TILE: gl.constexpr):
    """Tile t of weight + offset: the first SHARED tiles from shared memory, the rest from registers."""
    if t < SHARED:
        return shared.index(t).load(TILE)
    else:
        return weight[t]


@gluon.jit(do_not_specialize=["rows"])
def backward_ring(
    dy_ptr,
    s_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_partial_ptr,
    rows,
    weight_offset,
    N: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    SHARED: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dx and partial sums of dweight (programs, N). Rows are dense and 16-byte aligned, N is a multiple of 8.

    SHARED tiles of 256 * num_warps columns of the weight lie in shared memory; BLOCK_N is a multiple of such a tile.
    """
    if OVERLAP:
        gdc_wait()
    WIDTH: gl.constexpr = 256 * gl.num_warps()  # columns of a tile
    tiles: gl.constexpr = (N + WIDTH - 1) // WIDTH
    chunks: gl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    tiles_per_chunk: gl.constexpr = BLOCK_N // WIDTH
    gl.static_assert(N % 8 == 0 and BLOCK_N % WIDTH == 0 and chunks <= STAGES and SHARED > 0)
    TILE: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [gl.num_warps(), 1], [1, 0])
    DENSE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    columns = column_numbers(WIDTH, TILE)
    chunk_columns = column_numbers(BLOCK_N, TILE)
    program = gl.program_id(0)
    programs = gl.num_programs(0)

    s_ring = gl.allocate_shared_memory(s_ptr.dtype.element_ty, [STAGES, BLOCK_N // 8, 8], DENSE)
    dy_ring = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [STAGES, BLOCK_N // 8, 8], DENSE)
    # Asked for before the rows: else they arrive after all of them.
    rstd = gl.load(rstd_ptr + program, mask=program < rows, other=0.0)
    asked: gl.tuple = ()
    for t in gl.static_range(tiles):
        asked += (load_columns(weight_ptr, columns, t * WIDTH, (t + 1) * WIDTH, N),)
    for i in gl.static_range(STAGES):
        start_row = program + i // chunks * programs
        copy_chunk(s_ring, dy_ring, s_ptr, dy_ptr, start_row, i, rows, chunk_columns, i % chunks, BLOCK_N, N)
    shared = gl.allocate_shared_memory(gl.float32, [SHARED, WIDTH // 8, 8], split_halves(WIDTH // 8))
    weight: gl.tuple = ()
    dweight: gl.tuple = ()
    for t in gl.static_range(tiles):
        weight += (asked[t] + weight_offset,)
        if t < SHARED:
            shared.index(t).store(weight[t])
        dweight += (gl.zeros([WIDTH // 8, 8], gl.float32, TILE),)

    # Always true, unknown to the compiler. The branch keeps the chunks' arithmetic apart: else the assembler puts off
    # the additions to dweight, which nothing waits for, to the end of the row, and spills what they need.
    apart = weight_offset < float("inf")
    first = 0  # stage of the row's first chunk
    for row in range(program, rows, programs):
        next_rstd = gl.load(rstd_ptr + row + programs, mask=row + programs < rows, other=0.0)
        total = gl.zeros([WIDTH // 8], gl.float32, gl.SliceLayout(1, TILE))
        for k in gl.static_range(chunks):
            # Copies form one group a chunk, in the chunks' order, STAGES of them from this row's first chunk on.
            async_copy.wait_group(STAGES - 1 - k)
            stage = (first + k) % STAGES
            if apart:
                for t in gl.static_range(k * tiles_per_chunk, min((k + 1) * tiles_per_chunk, tiles)):
                    product = load_tile(s_ring, stage, t, BLOCK_N, TILE) * load_tile(dy_ring, stage, t, BLOCK_N, TILE)
                    total += gl.sum(product * weight_tile(shared, weight, t, SHARED, TILE), axis=1)
                    dweight = dweight[:t] + (dweight[t] + product * rstd,) + dweight[t + 1 :]  # noqa: RUF005
        c = gl.sum(total, axis=0) * rstd * (1.0 / N)
        for k in gl.static_range(chunks):
            stage = (first + k) % STAGES
            for t in gl.static_range(k * tiles_per_chunk, min((k + 1) * tiles_per_chunk, tiles)):
                s = load_tile(s_ring, stage, t, BLOCK_N, TILE)
                g = load_tile(dy_ring, stage, t, BLOCK_N, TILE) * weight_tile(shared, weight, t, SHARED, TILE)
                dx = rstd * (g - s * (rstd * c))
                store_columns(dx_ptr + gl.cast(row, gl.int64) * N, dx, columns, t * WIDTH, (t + 1) * WIDTH, N)
            later = row + (k + STAGES) // chunks * programs
            copy_chunk(
                s_ring, dy_ring, s_ptr, dy_ptr, later, stage, rows, chunk_columns, (k + STAGES) % chunks, BLOCK_N, N
            )
        first = (first + chunks) % STAGES
        rstd = next_rstd

    if OVERLAP:
        gdc_launch_dependents()
    if dweight_partial_ptr is not None:
        for t in gl.static_range(tiles):
            partial = dweight_partial_ptr + program.to(gl.int64) * N
            store_columns(partial, dweight[t], columns, t * WIDTH, (t + 1) * WIDTH, N)
