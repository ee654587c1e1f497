"""What a block is before its state is known, for Hopper: the inverse T, the scores of queries M. Symbols: ../README.md.

The inverse of I + A: blocks of 32 on the diagonal by forward substitution in fp32, a thread a column of a block, two
heads at a time; what is below them by two products of numbers in two 16-bit terms. Little is kept in registers, and
shared memory is used again, so that four programs share a multiprocessor: each has long waits.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import block_barrier, ex2, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import bounds_of, load_rows, owner_of, rows_at

from .arrays import Walks
from .blocks import HALF, UNIT, C, K, products, rounded, wide_rows

N = gl.constexpr(32)  # steps of a block on the diagonal
PAIR = gl.constexpr(2)  # heads whose inverses are computed side by side


@gluon.jit
def copy_rows(rows, t, live, memory):
    """Rows of q or k to shared memory (2, C, HALF); zeros of steps that do not live."""
    for i in gl.static_range(2):
        column = i * HALF + gl.arange(0, HALF, gl.SliceLayout(0, wide_rows(HALF)))
        memory.index(i).store(load_rows(rows, t, column, live, K, UNIT))


@gluon.jit
def product_of_rows(left, right, zero):
    """left right^T (C, C), both (2, C, HALF) in shared memory."""
    x = warpgroup_mma(left.index(0), right.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
    x = warpgroup_mma(left.index(1), right.index(1).permute((1, 0)), x, is_async=True)
    return warpgroup_mma_wait(0, deps=[x])


@gluon.jit
def weights_of(vectors_ptr, t, s):
    """(target, source): decays from a source to the same or a later step, times its beta; 0 to earlier ones."""
    y = gl.load(vectors_ptr + t)
    decays = ex2(gl.where(t[:, None] >= s[None, :], y[:, None] - gl.load(vectors_ptr + s)[None, :], float("-inf")))
    return decays * gl.load(vectors_ptr + C + s)[None, :]


@gluon.jit
def two_terms(x, DTYPE: gl.constexpr):
    """fp32 in two 16-bit terms."""
    high = rounded(x, DTYPE)
    return high, rounded(x - high.to(gl.float32), DTYPE)


@gluon.jit
def put_terms(memory, high, low):
    """Two terms to shared memory, when no warp reads there any more, for products of all warps."""
    block_barrier()
    memory.index(0).store(high)
    memory.index(1).store(low)
    fence_async_shared()
    block_barrier()


@gluon.jit
def product_of_terms(high, low, memory, zero, LEFT: gl.constexpr):
    """(high + low) times the terms in shared memory, without the smallest of the four products."""
    high = gl.convert_layout(high, LEFT, assert_trivial=True)
    x = warpgroup_mma(
        gl.convert_layout(low, LEFT, assert_trivial=True), memory.index(0), zero, use_acc=False, is_async=True
    )
    x = warpgroup_mma(high, memory.index(1), x, is_async=True)
    x = warpgroup_mma(high, memory.index(0), x, is_async=True)
    return warpgroup_mma_wait(0, deps=[x])


@gluon.jit
def substitute(memory):
    """Lower triangular matrices I + A (4, N, N) in shared memory -> their inverses, of an A that is given below the
    diagonal: row by row x_i = (column == i) - sum over l < i of A_il x_l.
    """
    THREADS: gl.constexpr = gl.BlockedLayout([1, 1, N // 2], [1, N, 1], [4, 1, 1], [2, 1, 0])
    column = gl.arange(0, N, gl.SliceLayout(0, gl.SliceLayout(2, THREADS)))[None, :]
    number = gl.arange(0, N // 2, gl.SliceLayout(0, gl.SliceLayout(1, THREADS)))[None, None, :]
    top = gl.zeros([2 * PAIR, N, N // 2], gl.float32, THREADS)
    low = gl.zeros([2 * PAIR, N, N // 2], gl.float32, THREADS)
    for i in gl.static_range(N):
        row = memory.slice(i, 1, 1)
        x = gl.where(column == i, 1.0, 0.0)
        if i > 0:
            x = x - gl.sum(row.slice(0, N // 2, 2).load(THREADS) * top, 2)
        if i > N // 2:
            x = x - gl.sum(row.slice(N // 2, N // 2, 2).load(THREADS) * low, 2)
        if i < N // 2:
            top = gl.where(number == i, x[:, :, None], top)
        else:
            low = gl.where(number == i - N // 2, x[:, :, None], low)
    block_barrier()
    columns = memory.permute((0, 2, 1))
    columns.slice(0, N // 2, 2).store(top)
    columns.slice(N // 2, N // 2, 2).store(low)


@gluon.jit
def on_diagonal(memory, same, X: gl.constexpr):
    """Two blocks in shared memory as those on the diagonal of a matrix (C, C)."""
    blocks = gl.expand_dims(memory.load(gl.SliceLayout(2, same.type.layout)), 2)
    return gl.convert_layout(gl.reshape(gl.where(same, blocks, 0.0), [C, C]), X, assert_trivial=True)


@gluon.jit(do_not_specialize=["q", "k", "call"])
def prepare(
    q,
    k,
    vectors_ptr,
    cu_seqlens_ptr,
    inverse,
    scores,
    call,
    GROUP: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """A program takes a block of C steps and a key head with its GROUP heads.

    inverse (slots H C, C): T. scores (slots H C, C): M = scale tril(QK beta_s).
    """
    DTYPE: gl.constexpr = q.pointer.dtype.element_ty
    X: gl.constexpr = products(C)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, X, 2)
    BLOCKS: gl.constexpr = gl.reshape(gl.zeros([C, C], gl.float32, X), [2, N, 2, N]).type.layout
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    q_s = gl.allocate_shared_memory(DTYPE, [2, C, HALF], PANEL)
    k_s = gl.allocate_shared_memory(DTYPE, [2, C, HALF], PANEL)
    # First scores on their way out, then blocks on the diagonal.
    out_s = gl.allocate_shared_memory(DTYPE, [2, C, C], PANEL)
    blocks_s = out_s._reinterpret(gl.float32, [2 * PAIR, N, N], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    slot = gl.program_id(0) // call.G
    group = gl.program_id(0) % call.G
    number, step = owner_of(slot, walks, C)
    row, first, length = bounds_of(number, walks)
    if (step >= 0) & (step < length):
        j = step + gl.arange(0, C, gl.SliceLayout(1, wide_rows(HALF)))
        copy_rows(rows_at(k, row, first, group, UNIT), j, j < length, k_s)
        copy_rows(rows_at(q, row, first, group, UNIT), j, j < length, q_s)
        fence_async_shared()
        block_barrier()
        zero = gl.zeros([C, C], gl.float32, X)
        t = gl.arange(0, C, gl.SliceLayout(1, X))
        s = gl.arange(0, C, gl.SliceLayout(0, X))
        head = slot * call.H + group * GROUP
        vectors_ptr += gl.cast(head, gl.int64) * (2 * C)
        of_queries = product_of_rows(q_s, k_s, zero)
        for member in range(GROUP):
            weights = weights_of(vectors_ptr + member * (2 * C), t, s)
            own = out_s.index(member % 2)
            tma.store_wait(1)
            block_barrier()
            own.store(rounded(of_queries * weights * call.scale, DTYPE))
            fence_async_shared()
            block_barrier()
            tma_store(scores, [(head + member) * C, 0], own)
        first_half = gl.arange(0, 2, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, BLOCKS))))
        second_half = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, BLOCKS))))
        same = first_half[:, None, None, None] == second_half[None, None, :, None]
        for pair in range((GROUP + PAIR - 1) // PAIR):
            of_keys = product_of_rows(k_s, k_s, zero)
            tma.store_wait(0)
            block_barrier()
            for w in gl.static_range(PAIR):
                # Of an odd number of heads the last comes twice.
                weights = weights_of(vectors_ptr + gl.minimum(PAIR * pair + w, GROUP - 1) * (2 * C), t, s)
                A = gl.where(t[:, None] > s[None, :], of_keys * weights, 0.0)
                blocks_s.slice(2 * w, 2).store(gl.sum(gl.where(same, gl.reshape(A, [2, N, 2, N]), 0.0), 2))
            block_barrier()
            substitute(blocks_s)
            block_barrier()
            for w in gl.static_range(PAIR):
                own = PAIR * pair + w
                high, low = two_terms(on_diagonal(blocks_s.slice(2 * w, 2), same, X), DTYPE)
                tma.store_wait(0)
                put_terms(q_s, high, low)
                of_keys = product_of_rows(k_s, k_s, zero)
                weights = weights_of(vectors_ptr + gl.minimum(own, GROUP - 1) * (2 * C), t, s)
                below = gl.where((t[:, None] >= N) & (s[None, :] < N), of_keys * weights, 0.0)
                high, low = two_terms(below, DTYPE)
                high, low = two_terms(product_of_terms(high, low, q_s, zero, LEFT), DTYPE)
                put_terms(q_s, high, low)
                # Read again, which leaves registers to the products.
                high, low = two_terms(on_diagonal(blocks_s.slice(2 * w, 2), same, X), DTYPE)
                product = product_of_terms(high, low, q_s, zero, LEFT)
                x = on_diagonal(blocks_s.slice(2 * w, 2), same, X) - product
                block_barrier()
                q_s.index(0).store(rounded(x, DTYPE))
                fence_async_shared()
                block_barrier()
                if own < GROUP:
                    tma_store(inverse, [(head + own) * C, 0], q_s.index(0))
        tma.store_wait(0)
