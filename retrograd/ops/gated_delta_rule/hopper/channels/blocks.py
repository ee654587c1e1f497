"""What the kernels for Hopper share where each channel has a decay of its own. Symbols: ../../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import block_barrier
from retrograd.core.kernels.warpgroups import converting

from ..blocks import C, K

# Of a block and head: e^y_end, K numbers in column order; beta in column order; beta.
PLANES = gl.constexpr(4)
WIDE_WARPS = gl.constexpr(8)  # of a program that makes rows
CHUNK = gl.constexpr(C.value // WIDE_WARPS.value)  # steps of a warp of it
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
def log_toward_middle(sums, ends, LEVEL: gl.constexpr):
    """(steps, K): the logarithm of the decays from the middle of a level on, or less that up to it."""
    GROUPS: gl.constexpr = CHUNK >> (LEVEL + 1) if LEVEL < LEVELS_OF_CHUNK else 1
    x = gl.reshape(sums, [WIDE_WARPS, GROUPS, CHUNK // GROUPS, K])
    between = x - gl.convert_layout(middles(sums, ends, LEVEL), x.type.layout, assert_trivial=True)
    return gl.convert_layout(gl.reshape(between, [C, K]), ROWS, assert_trivial=True)


@gluon.constexpr_function
def decaying(DTYPE):
    """The instructions of `decayed`, for two numbers."""
    if gl.bfloat16 == DTYPE:
        widen = "shl.b32 x, {0}, 16; and.b32 y, {0}, 0xffff0000; "
    else:
        widen = "mov.b32 {{a, b}}, {0}; cvt.f32.f16 x, a; cvt.f32.f16 y, b; "
    factor = "abs.f32 {0}, {1}; neg.f32 {0}, {0}; ex2.approx.ftz.f32 {0}, {0}; "
    multiply = "mul.f32 x, x, u; mul.f32 y, y, w; " + converting(DTYPE) + " {0}, y, x; "
    return (
        "{ .reg .b16 a, b; .reg .b32 u, w, x, y; "
        + factor.format("u", "$4")
        + factor.format("w", "$5")
        + widen.format("$2")
        + multiply.format("$0")
        + widen.format("$3")
        + multiply.format("$1")
        + "}"
    )


@gluon.jit
def decayed(k, q, between):
    """Rows (steps, K) of k and of q times their decays 2^-|between|, in 16 bits."""
    return gl.inline_asm_elementwise(
        decaying(k.dtype), "=&r,=&r,r,r,f,f", [k, q, between], dtype=(k.dtype, k.dtype), is_pure=False, pack=2
    )


@gluon.jit
def by_role(of_k, of_q, LEVEL: gl.constexpr):
    """(2 C, K): sources on a level, of k and of q, and targets, of k and of q."""
    x = gl.reshape(gl.join(of_k, of_q), [C >> (LEVEL + 1), 2, 1 << LEVEL, K, 2])
    return gl.reshape(x.permute(1, 4, 0, 2, 3), [2 * C, K])


@gluon.constexpr_function
def above(level, low, high):
    """Values of a step's bits from `low` up to `high` that are above a level's bit; of all, if it is not there."""
    return 1 << (high - 1 - level if low <= level < high else high - low)


@gluon.constexpr_function
def below(level, low, high):
    """The same of those below it: 1, if it is not there."""
    return 1 << (level - low if low <= level < high else 0)


@gluon.constexpr_function
def last_first(rank):
    """The order of the axes of a dense array."""
    return list(range(rank - 1, -1, -1))


# In shared memory pairs are (k or q, bits of t from T_LOW, of s from S_LOW, lower bits of t, of s): so a warp stores to
# many banks.
T_LOW, S_LOW, BITS = gl.constexpr(2), gl.constexpr(3), gl.constexpr(6)


@gluon.jit
def put_pairs(memory, x, LEVEL: gl.constexpr):
    """A level's products (targets of k and q, sources) to shared memory (2 C, C), where those of all levels are.

    Of pairs in different groups of the level they are not what is wanted: a higher level, or nobody, has those.
    """
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, last_first(13))
    T1: gl.constexpr = above(LEVEL, T_LOW, BITS)
    T2: gl.constexpr = below(LEVEL, T_LOW, BITS)
    T3: gl.constexpr = above(LEVEL, 0, T_LOW)
    T4: gl.constexpr = below(LEVEL, 0, T_LOW)
    S1: gl.constexpr = above(LEVEL, S_LOW, BITS)
    S2: gl.constexpr = below(LEVEL, S_LOW, BITS)
    S3: gl.constexpr = above(LEVEL, 0, S_LOW)
    S4: gl.constexpr = below(LEVEL, 0, S_LOW)
    T_HIGH: gl.constexpr = 2 if LEVEL >= T_LOW else 1
    S_HIGH: gl.constexpr = 2 if LEVEL >= S_LOW else 1
    shape: gl.constexpr = [2, T1, T_HIGH, T2, S1, S_HIGH, S2, T3, 2 // T_HIGH, T4, S3, 2 // S_HIGH, S4]
    own = memory._reinterpret(gl.float32, shape, FLAT)
    own = own.slice(1, 1, 2 if LEVEL >= T_LOW else 8).slice(0, 1, 5 if LEVEL >= S_LOW else 11)
    x = gl.reshape(x, [2, T1, T2, T3, T4, S1, S2, S3, S4]).permute(0, 1, 2, 5, 6, 3, 4, 7, 8)
    own.store(gl.reshape(x, [2, T1, 1, T2, S1, 1, S2, T3, 1, T4, S3, 1, S4]))


@gluon.jit
def pairs_from(memory, PART: gl.constexpr):
    """(targets, sources) of k or of q, (C, C)."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, last_first(4))
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 2, 8, 2], [4, 2, 1, 1], [3, 2, 1, 0])
    own = memory._reinterpret(gl.float32, [2, C >> T_LOW, C >> S_LOW, 1 << T_LOW, 1 << S_LOW], FLAT).index(PART)
    return gl.reshape(own.permute((0, 2, 1, 3)).load(LAYOUT), [C, C])
