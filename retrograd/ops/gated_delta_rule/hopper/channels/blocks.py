"""What the kernels for Hopper share where each channel has a decay of its own. Symbols: ../../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import block_barrier
from retrograd.core.kernels.warpgroups import converting

from ..blocks import C, K

# Of a block and head: e^y_end, K numbers in column order; beta in column order; beta.
PLANES = gl.constexpr(4)
import os
WIDE_WARPS = gl.constexpr(int(os.environ.get("KDA_WARPS", "16")))  # of a program that makes rows
CHUNK = gl.constexpr(64 // WIDE_WARPS.value)  # steps of a warp of it
LEVELS_OF_CHUNK = gl.constexpr(CHUNK.value.bit_length() - 1)
ROWS = gl.constexpr(gl.BlockedLayout([CHUNK.value, 4], [1, 32], [WIDE_WARPS.value, 1], [1, 0]))  # (steps, channels)


@gluon.jit
def ends_of(memory, LAYOUT: gl.constexpr):
    """e^y_end (K,) along the columns of a product, from its two planes."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    own = memory._reinterpret(gl.float32, [4, K // 8, 2], FLAT).permute((1, 0, 2))
    like = gl.reshape(gl.arange(0, K, LAYOUT), [K // 8, 4, 2])
    return gl.convert_layout(gl.reshape(own.load(like.type.layout), [K]), LAYOUT, assert_trivial=True)


@gluon.jit
def added(x, y):
    """The operation of a running sum."""
    return x + y


@gluon.jit
def added_before(x, x_before, y, y_before):
    """The operation of a running sum with, and of one without the number itself, which begins as 0."""
    return x + y, x + y_before


@gluon.jit
def last_of(x):
    """(n, m, K) -> (n, 1, K): the last of m, up to 16 and a power of two, which a thread holds all."""
    n: gl.constexpr = x.shape[0]
    for _ in gl.static_range(4):
        if x.shape[1] > 1:
            _, x = gl.reshape(x, [n, 2, x.shape[1] // 2, K]).permute(0, 2, 3, 1).split()
    return x


@gluon.jit
def running_sums(log, ends, starts):
    """Sums (steps, K) of log decays from the block's start. ends, starts: shared memory, a row of K for each chunk.

    A step adds the sum of the chunks before to that within its own, both one after another: behind a sequence's last
    step nothing is added. `ends` has the sums at the end of each chunk then, `starts` those before it.
    """
    CHANNELS: gl.constexpr = gl.BlockedLayout([WIDE_WARPS, 1], [1, 32], [1, WIDE_WARPS], [1, 0])
    x = gl.associative_scan(gl.reshape(log, [WIDE_WARPS, CHUNK, K]), 1, added)
    chunks(ends).store(last_of(x))
    block_barrier()
    totals = ends.load(CHANNELS)
    sums, before = gl.associative_scan((totals, gl.zeros([WIDE_WARPS, K], gl.float32, CHANNELS)), 0, added_before)
    block_barrier()
    ends.store(sums)
    starts.store(before)
    block_barrier()
    x = x + chunks(starts).load(x.type.layout)
    return gl.convert_layout(gl.reshape(x, [C, K]), ROWS, assert_trivial=True)


@gluon.jit
def chunks(memory):
    """(chunks, 1, K), of rows in shared memory."""
    return memory._reinterpret(gl.float32, [WIDE_WARPS, 1, K], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))


@gluon.jit
def middles(sums, ends, LEVEL: gl.constexpr):
    """(chunks, n, 1, K): the sums at the last step of the first half of each group of 2^(LEVEL + 1) steps.

    Groups are those of a chunk; where they are larger, n is 1.
    """
    if LEVEL < LEVELS_OF_CHUNK:
        GROUPS: gl.constexpr = CHUNK >> (LEVEL + 1)
        first, _ = gl.reshape(sums, [WIDE_WARPS * GROUPS, 2, 1 << LEVEL, K]).permute(0, 2, 3, 1).split()
        return gl.reshape(last_of(first), [WIDE_WARPS, GROUPS, 1, K])
    else:
        SPAN: gl.constexpr = 1 << (LEVEL + 1 - LEVELS_OF_CHUNK)  # chunks of a group
        FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [WIDE_WARPS // SPAN, SPAN, 1], [2, 1, 0])
        own = ends._reinterpret(gl.float32, [WIDE_WARPS // SPAN, SPAN, K], FLAT)
        x = own.slice(SPAN // 2 - 1, 1, 1).load(LAYOUT)
        _, x = gl.broadcast(gl.zeros([WIDE_WARPS // SPAN, SPAN, K], gl.float32, LAYOUT), x)
        return gl.reshape(x, [WIDE_WARPS, 1, 1, K])


@gluon.jit
def toward_middle(sums, ends, LEVEL: gl.constexpr):
    """(steps, K): the logarithm of the decays from the middle of a level on, or less that up to it."""
    GROUPS: gl.constexpr = CHUNK >> (LEVEL + 1) if LEVEL < LEVELS_OF_CHUNK else 1
    x = gl.reshape(sums, [WIDE_WARPS, GROUPS, CHUNK // GROUPS, K])
    between = x - gl.convert_layout(middles(sums, ends, LEVEL), x.type.layout, assert_trivial=True)
    return gl.convert_layout(gl.reshape(between, [C, K]), ROWS, assert_trivial=True)


@gluon.constexpr_function
def deciding(DTYPE):
    """The instructions of `in_roles`, for two numbers."""
    factor = "abs.f32 {0}, {1}; neg.f32 {0}, {0}; ex2.approx.ftz.f32 {0}, {0}; "
    product = "mul.f32 x, {0}, u; mul.f32 y, {1}, w; " + converting(DTYPE) + " z, y, x; "
    return (
        "{ .reg .f32 u, w, x, y; .reg .b32 z, m; not.b32 m, $9; "
        + factor.format("u", "$7")
        + factor.format("w", "$8")
        + product.format("$5", "$6")
        + "and.b32 $1, z, $9; "
        + product.format("$3", "$4")
        + "and.b32 $0, z, $9; and.b32 $2, z, m; }"
    )


@gluon.jit
def in_roles(k, q, between, LEVEL: gl.constexpr, DTYPE: gl.constexpr):
    """Rows (steps, K) times their decays 2^-|between|, in 16 bits: of k and of q as targets, of k as sources; else 0."""
    step = gl.arange(0, C, gl.SliceLayout(1, ROWS))
    target = (0 - ((step >> LEVEL) & 1))[:, None]
    _, target = gl.broadcast(between, target)
    return gl.inline_asm_elementwise(
        deciding(DTYPE),
        "=r,=r,=r,f,f,f,f,f,f,r,r",
        [k, q, between, target],
        dtype=(DTYPE.value, DTYPE.value, DTYPE.value),
        is_pure=False,
        pack=2,
    )
