"""RMSNorm, backward, for long rows on Hopper. Symbols and formulas: ../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .forward import copy_chunk, load_chunk, store_chunk


@gluon.jit
def copy_chunks(
    s_ring, dy_ring, s_ptr, dy_ptr, row, slot, rows, columns, k: gl.constexpr, N: gl.constexpr, BLOCK_N: gl.constexpr
):
    """Start to copy chunk k of a row of s and dy to a slot; one group of copies, empty where the row does not exist."""
    if row < rows:
        start = row.to(gl.int64) * N
        copy_chunk(s_ring.index(slot), s_ptr + start, columns, k, N, BLOCK_N)
        copy_chunk(dy_ring.index(slot), dy_ptr + start, columns, k, N, BLOCK_N)
    async_copy.commit_group()


@gluon.jit
def weight_chunk(shared, kept, k: gl.constexpr, SHARED: gl.constexpr, TILE: gl.constexpr):
    """Chunk k of weight + offset, from shared memory or from the registers that keep the rest."""
    if k < SHARED:
        return shared.index(k).load(TILE)
    else:
        return kept[k - SHARED]


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
    SLOTS: gl.constexpr,
    SHARED: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dx, and partial sums of dweight (programs, N)."""
    if OVERLAP:
        gdc_wait()
    chunks: gl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    TILE: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [gl.num_warps(), 1], [1, 0])
    DENSE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    # Lanes 4 to 7 of 8 find their halves exchanged, so that 8 lanes together reach all banks.
    HALVES: gl.constexpr = gl.SwizzledSharedLayout(4, 4, 2, [1, 0])
    lane = gl.arange(0, BLOCK_N // 8, gl.SliceLayout(1, TILE))
    columns = lane[:, None] * 8 + gl.arange(0, 8, gl.SliceLayout(0, TILE))[None, :]

    program = gl.program_id(0)
    programs = gl.num_programs(0)
    s_ring = gl.allocate_shared_memory(s_ptr.dtype.element_ty, [SLOTS, BLOCK_N // 8, 8], DENSE)
    dy_ring = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [SLOTS, BLOCK_N // 8, 8], DENSE)
    for q in gl.static_range(SLOTS):
        row = program + q // chunks * programs
        copy_chunks(s_ring, dy_ring, s_ptr, dy_ptr, row, q, rows, columns, q % chunks, N, BLOCK_N)

    shared = gl.allocate_shared_memory(gl.float32, [SHARED, BLOCK_N // 8, 8], HALVES)
    kept = ()
    dweight = ()
    for k in gl.static_range(chunks):
        weight = load_chunk(weight_ptr, columns, k, N, BLOCK_N) + weight_offset
        if k < SHARED:
            shared.index(k).store(weight)
        else:
            kept += (weight,)
        dweight += (gl.zeros([BLOCK_N // 8, 8], gl.float32, TILE),)

    first = 0
    rstd = gl.load(rstd_ptr + program, mask=program < rows, other=0.0)
    for row in range(program, rows, programs):
        next_rstd = gl.load(rstd_ptr + row + programs, mask=row + programs < rows, other=0.0)
        products = gl.zeros([BLOCK_N // 8], gl.float32, gl.SliceLayout(1, TILE))
        sums = ()
        for k in gl.static_range(chunks):
            async_copy.wait_group(SLOTS - 1 - k)
            slot = (first + k) % SLOTS
            x_hat = s_ring.index(slot).load(TILE).to(gl.float32) * rstd
            dy = dy_ring.index(slot).load(TILE).to(gl.float32)
            products += gl.sum(dy * weight_chunk(shared, kept, k, SHARED, TILE) * x_hat, axis=1)
            sums += (dweight[k] + dy * x_hat,)
        dweight = sums
        c = gl.sum(products, axis=0) * (1.0 / N)
        for k in gl.static_range(chunks):
            slot = (first + k) % SLOTS
            x_hat = s_ring.index(slot).load(TILE).to(gl.float32) * rstd
            g = dy_ring.index(slot).load(TILE).to(gl.float32) * weight_chunk(shared, kept, k, SHARED, TILE)
            ahead = row + (k + SLOTS) // chunks * programs
            copy_chunks(s_ring, dy_ring, s_ptr, dy_ptr, ahead, slot, rows, columns, (k + SLOTS) % chunks, N, BLOCK_N)
            store_chunk(dx_ptr + row.to(gl.int64) * N, rstd * (g - x_hat * c), columns, k, N, BLOCK_N)
        first = (first + chunks) % SLOTS
        rstd = next_rstd

    if OVERLAP:
        gdc_launch_dependents()
    for k in gl.static_range(chunks):
        store_chunk(dweight_partial_ptr + program.to(gl.int64) * N, dweight[k], columns, k, N, BLOCK_N)
