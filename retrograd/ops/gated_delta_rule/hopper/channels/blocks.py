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
def last_of(x):
    """(n, m, K) -> (n, 1, K): the last of m, up to 16 and a power of two, which a thread holds all."""
    n: gl.constexpr = x.shape[0]
    for _ in gl.static_range(4):
        if x.shape[1] > 1:
            _, x = gl.reshape(x, [n, 2, x.shape[1] // 2, K]).permute(0, 2, 3, 1).split()
    return x


@gluon.jit
def running_sums(log, ends):
    """Sums (steps, K) of log decays from the block's start. ends: shared memory, a row of K for each chunk, flat.

    A step adds the sum of the chunks before to that within its own, both one after another: behind a sequence's last
    step nothing is added. `ends` has the sums at the end of each chunk then.
    """
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    ALL: gl.constexpr = gl.BlockedLayout([1, WIDE_WARPS, 4], [1, 1, 32], [WIDE_WARPS, 1, 1], [2, 1, 0])
    own = ends._reinterpret(gl.float32, [WIDE_WARPS, 1, K], FLAT)
    x = gl.associative_scan(gl.reshape(log, [WIDE_WARPS, CHUNK, K]), 1, added)
    totals = last_of(x)
    own.store(totals)
    block_barrier()
    others = ends._reinterpret(gl.float32, [1, WIDE_WARPS, K], FLAT).load(ALL)
    _, others = gl.broadcast(gl.zeros([WIDE_WARPS, WIDE_WARPS, K], gl.float32, ALL), others)
    chunk = gl.arange(0, WIDE_WARPS, gl.SliceLayout(1, gl.SliceLayout(2, ALL)))[:, None, None]
    other = gl.arange(0, WIDE_WARPS, gl.SliceLayout(0, gl.SliceLayout(2, ALL)))[None, :, None]
    before = last_of(gl.associative_scan(gl.where(other < chunk, others, 0.0), 1, added))
    before = gl.convert_layout(before, totals.type.layout, assert_trivial=True)
    block_barrier()
    own.store(before + totals)
    block_barrier()
    x = x + gl.convert_layout(before, x.type.layout, assert_trivial=True)
    return gl.convert_layout(gl.reshape(x, [C, K]), ROWS, assert_trivial=True)


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
    if gl.bfloat16 == DTYPE:
        widen = "shl.b32 x, {0}, 16; and.b32 y, {0}, 0xffff0000; "
    else:
        widen = "mov.b32 {{a, b}}, {0}; cvt.f32.f16 x, a; cvt.f32.f16 y, b; "
    factor = "abs.f32 {0}, {1}; neg.f32 {0}, {0}; ex2.approx.ftz.f32 {0}, {0}; "
    multiply = "mul.f32 x, x, u; mul.f32 y, y, w; " + converting(DTYPE) + " z, y, x; "
    return (
        "{ .reg .b16 a, b; .reg .b32 u, w, x, y, z; "
        + factor.format("u", "$5")
        + factor.format("w", "$6")
        + widen.format("$4")
        + multiply
        + "and.b32 $1, z, $7; "
        + widen.format("$3")
        + multiply
        + "and.b32 $0, z, $7; not.b32 x, $7; and.b32 $2, z, x; }"
    )


@gluon.jit
def in_roles(k, q, between, LEVEL: gl.constexpr):
    """Rows (steps, K) times their decays 2^-|between|, in 16 bits: of k and of q as targets, of k as sources; else 0."""
    step = gl.arange(0, C, gl.SliceLayout(1, ROWS))
    target = (0 - ((step >> LEVEL) & 1))[:, None]
    _, target = gl.broadcast(between, target)
    return gl.inline_asm_elementwise(
        deciding(k.dtype),
        "=r,=r,=r,r,r,f,f,r,r",
        [k, q, between, target],
        dtype=(k.dtype, k.dtype, k.dtype),
        is_pure=False,
        pack=2,
    )
