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
from retrograd.core.kernels.warpgroups import WARPS, products, rounded, wide_rows

from .arrays import Walks
from .blocks import HALF, UNIT, C, K

N = gl.constexpr(32)  # steps of a block on the diagonal
PAIR = gl.constexpr(2)  # heads whose inverses are computed side by side


@gluon.jit
def copy_rows(rows, t, live, memory):
    """Rows of q or k to shared memory (2, C, HALF); zeros of steps that do not live."""
    for i in gl.static_range(2):
        column = i * HALF + gl.arange(0, HALF, gl.SliceLayout(0, wide_rows(HALF, WARPS)))
        memory.index(i).store(load_rows(rows, t, column, live, K, UNIT))


@gluon.jit
def products_of_rows(q, k, zero):
    """q k^T and k k^T (C, C), of arrays (2, C, HALF) in shared memory."""
    x = warpgroup_mma(k.index(0), k.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
    x = warpgroup_mma(k.index(1), k.index(1).permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(q.index(0), k.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
    y = warpgroup_mma(q.index(1), k.index(1).permute((1, 0)), y, is_async=True)
    x, y = warpgroup_mma_wait(0, deps=[x, y])
    return y, x


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
def put_terms(memory, PLACE: gl.constexpr, high, low):
    """Two terms to shared memory, when no warp reads there any more, for products of all warps."""
    block_barrier()
    memory.index(PLACE).store(high)
    memory.index(PLACE + 1).store(low)
    fence_async_shared()
    block_barrier()


@gluon.jit
def product_of_terms(high, low, memory, ROW: gl.constexpr, zero):
    """(high + low) (C, N) times N rows of terms in shared memory, without the smallest of the four products."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, zero.type.layout, 2)
    high = gl.convert_layout(high, LEFT, assert_trivial=True)
    low = gl.convert_layout(low, LEFT, assert_trivial=True)
    x = warpgroup_mma(low, memory.index(0).slice(ROW, N), zero, use_acc=False, is_async=True)
    x = warpgroup_mma(high, memory.index(1).slice(ROW, N), x, is_async=True)
    x = warpgroup_mma(high, memory.index(0).slice(ROW, N), x, is_async=True)
    return warpgroup_mma_wait(0, deps=[x])


@gluon.jit
def separate(x, blocks, DTYPE: gl.constexpr, HALVES: gl.constexpr):
    """The blocks on the diagonal of A (C, C), below it, to shared memory; what is below these, in two terms."""
    left, right = gl.reshape(x, [C, 2, N]).permute(0, 2, 1).split()
    left = gl.convert_layout(left, HALVES, assert_trivial=True)
    right = gl.convert_layout(right, HALVES, assert_trivial=True)
    row = gl.arange(0, C, gl.SliceLayout(1, HALVES))[:, None]
    column = gl.arange(0, N, gl.SliceLayout(0, HALVES))[None, :]
    own = gl.where(row % N > column, gl.where(row < N, left, right), 0.0)
    blocks.store(gl.reshape(own, [2, N, N]))
    return two_terms(left, DTYPE)


@gluon.jit
def begin(vectors_ptr, of_queries, of_keys, scale, t, s, scores, blocks, HALVES: gl.constexpr):
    """A head's scores, and A as `separate` leaves it."""
    weights = weights_of(vectors_ptr, t, s)
    scores.store(rounded(of_queries * weights * scale, scores.dtype))
    return separate(of_keys * weights, blocks, scores.dtype, HALVES)


@gluon.jit
def finish(high, low, blocks, terms, out, X: gl.constexpr, HALVES: gl.constexpr):
    """A head's inverse, from its blocks on the diagonal and what is below them in A, to `out`.

    Half of a matrix's columns (C, N): the blocks on the diagonal side by side, or those below it; where there are
    none, its rows are anything.
    """
    zero = gl.zeros([C, N], gl.float32, HALVES)
    LIKE: gl.constexpr = gl.reshape(zero, [2, N, N]).type.layout
    own = gl.convert_layout(gl.reshape(blocks.load(LIKE), [C, N]), HALVES, assert_trivial=True)
    own_high, own_low = two_terms(own, out.dtype)
    put_terms(terms, 0, own_high, own_low)
    high, low = two_terms(product_of_terms(high, low, terms, 0, zero), out.dtype)
    put_terms(terms, 0, high, low)
    below = product_of_terms(own_high, own_low, terms, N, zero)
    top = gl.arange(0, C, gl.SliceLayout(1, HALVES))[:, None] < N
    both = gl.join(gl.where(top, own, -below), gl.where(top, 0.0, own))
    x = gl.convert_layout(gl.reshape(both.permute(0, 2, 1), [C, C]), X, assert_trivial=True)
    tma.store_wait(0)
    block_barrier()
    out.store(rounded(x, out.dtype))
    fence_async_shared()
    block_barrier()


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
def finish_both(inverse, own, other, blocks, terms, out, X: gl.constexpr, HALVES: gl.constexpr):
    """The inverses of two heads, from their blocks on the diagonal of A, and from what is below these in two terms:
    `terms` has those of `other`, then those of `own`. They leave through `out`.
    """
    substitute(blocks)
    block_barrier()
    LEFT: gl.constexpr = gl.DotOperandLayout(0, HALVES, 2)
    other_high = gl.convert_layout(terms.index(0).load(LEFT), HALVES, assert_trivial=True)
    other_low = gl.convert_layout(terms.index(1).load(LEFT), HALVES, assert_trivial=True)
    high = gl.convert_layout(terms.index(2).load(LEFT), HALVES, assert_trivial=True)
    low = gl.convert_layout(terms.index(3).load(LEFT), HALVES, assert_trivial=True)
    finish(high, low, blocks.slice(0, 2), terms, out.index(0), X, HALVES)
    tma_store(inverse, [own * C, 0], out.index(0))
    finish(other_high, other_low, blocks.slice(2, 2), terms, out.index(1), X, HALVES)
    if other > own:
        tma_store(inverse, [other * C, 0], out.index(1))
    tma.store_wait(0)


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
    """A program takes a block of C steps, and two of the GROUP heads of a key head.

    inverse (slots H C, C): T. scores (slots H C, C): M = scale tril(QK beta_s).
    """
    DTYPE: gl.constexpr = q.pointer.dtype.element_ty
    X: gl.constexpr = products(C)
    HALVES: gl.constexpr = products(N)
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    TERMS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, N], DTYPE)
    # First q and k, then what leaves, and terms.
    q_s = gl.allocate_shared_memory(DTYPE, [2, C, HALF], PANEL)
    k_s = gl.allocate_shared_memory(DTYPE, [2, C, HALF], PANEL)
    terms_s = k_s._reinterpret(DTYPE, [4, C, N], TERMS)
    blocks_s = gl.allocate_shared_memory(gl.float32, [2 * PAIR, N, N], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    walks = Walks(call.T, call.sequences, call.H, call.G, cu_seqlens_ptr)
    pairs = (GROUP + PAIR - 1) // PAIR
    pair = gl.program_id(0) % pairs
    group = gl.program_id(0) // pairs % call.G
    slot = gl.program_id(0) // pairs // call.G
    number, step = owner_of(slot, walks, C)
    row, first, length = bounds_of(number, walks)
    if (step >= 0) & (step < length):
        j = step + gl.arange(0, C, gl.SliceLayout(1, wide_rows(HALF, WARPS)))
        copy_rows(rows_at(k, row, first, group, UNIT), j, j < length, k_s)
        copy_rows(rows_at(q, row, first, group, UNIT), j, j < length, q_s)
        fence_async_shared()
        block_barrier()
        t = gl.arange(0, C, gl.SliceLayout(1, X))
        s = gl.arange(0, C, gl.SliceLayout(0, X))
        of_queries, of_keys = products_of_rows(q_s, k_s, gl.zeros([C, C], gl.float32, X))
        block_barrier()
        own = slot * call.H + group * GROUP + PAIR * pair
        # Of an odd number of heads the last comes twice.
        other = gl.minimum(own + 1, slot * call.H + (group + 1) * GROUP - 1)
        own_ptr = vectors_ptr + gl.cast(own, gl.int64) * (2 * C)
        other_ptr = vectors_ptr + gl.cast(other, gl.int64) * (2 * C)
        high, low = begin(own_ptr, of_queries, of_keys, call.scale, t, s, q_s.index(0), blocks_s.slice(0, 2), HALVES)
        # To shared memory, with a barrier: else both heads are begun at once, for which there are no registers.
        put_terms(terms_s, 2, high, low)
        other_high, other_low = begin(
            other_ptr, of_queries, of_keys, call.scale, t, s, q_s.index(1), blocks_s.slice(2, 2), HALVES
        )
        put_terms(terms_s, 0, other_high, other_low)
        tma_store(scores, [own * C, 0], q_s.index(0))
        if other > own:
            tma_store(scores, [other * C, 0], q_s.index(1))
        finish_both(inverse, own, other, blocks_s, terms_s, q_s, X, HALVES)
    else:
        # Slots of no steps are saved, too.
        q_s.index(0).store(gl.zeros([C, C], DTYPE, X))
        fence_async_shared()
        block_barrier()
        own = slot * call.H + group * GROUP + PAIR * pair
        for member in gl.static_range(PAIR):
            if PAIR * pair + member < GROUP:
                tma_store(inverse, [(own + member) * C, 0], q_s.index(0))
                tma_store(scores, [(own + member) * C, 0], q_s.index(0))
        tma.store_wait(0)
