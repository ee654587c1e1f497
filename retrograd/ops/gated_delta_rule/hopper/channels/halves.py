"""Half of a block, transposed, in the registers of two warpgroups: layouts, sums over steps, decays of a level.

A step of a half is 8 i + 2 lane + b: four lanes in a row have the steps of a channel. Symbols: ../../README.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.numerics import forget
from retrograd.core.kernels.warpgroups import converting

from ..blocks import K

WARPS = gl.constexpr(8)
STEPS = gl.constexpr(32)  # of half of a block
LEVELS = gl.constexpr(5)  # within a half


@gluon.constexpr_function
def products_of(columns):
    """How two warpgroups hold a product (128, columns)."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, columns, 16])


X = gl.constexpr(products_of(32))  # (channel, step)
LEFT = gl.constexpr(gl.DotOperandLayout(0, products_of(32), 2))
CHANNEL = gl.constexpr(gl.SliceLayout(1, products_of(32)))
STEP = gl.constexpr(gl.SliceLayout(0, products_of(32)))
BY_WARP = gl.constexpr(gl.BlockedLayout([1, 1, 2], [1, 8, 4], [8, 1, 1], [2, 1, 0]))  # X, as (8, 16, 32)


@gluon.jit
def in_16_bits(x, DTYPE: gl.constexpr):
    """fp32 rounded; equal operands give one instruction."""
    return gl.inline_asm_elementwise(
        converting(DTYPE) + " $0, $2, $1;", "=r,f,f", [x], dtype=DTYPE.value, is_pure=True, pack=2
    )


@gluon.jit
def part_of(memory, n=0):
    """A part by a number that the compiler does not know: else it keeps addresses of all, and what it has once read."""
    return memory.index(forget(gl.to_tensor(n)))


@gluon.jit
def last_of(sums):
    """(channel, 1): the sums at the last step of a half."""
    last = gl.arange(0, STEPS, STEP)[None, :] == STEPS - 1
    return gl.sum(gl.where(last, sums.to(gl.int32, bitcast=True), 0), 1).to(gl.float32, bitcast=True)[:, None]


@gluon.jit
def decay_of(between):
    """2 to the power of a difference, in the direction in which it is a decay."""
    return gl.inline_asm_elementwise(
        "{ .reg .f32 x; abs.f32 x, $1; neg.f32 x, x; ex2.approx.ftz.f32 $0, x; }",
        "=f,f",
        [between],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def from_lanes(x, keep, add):
    """x (channel, 4, 4) of another lane along the last axis: of a lane's number the bits `keep` are kept, `add` set."""
    keep = gl.full(x.shape, keep, gl.int32, x.type.layout)
    add = gl.full(x.shape, add, gl.int32, x.type.layout)
    return gl.inline_asm_elementwise(
        "{ .reg .b32 lane; mov.u32 lane, %laneid; and.b32 lane, lane, $2; or.b32 lane, lane, $3; "
        "shfl.sync.idx.b32 $0, $1, lane, 0x1c03, -1; }",
        "=f,f,r,r",
        [x, keep, add],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def toward_middle(sums, level):
    """(channel, step): the decays from the middle of a level on, or up to it, of 32 steps.

    The middle of a step has its number with the level's bit 0 and all below it 1.
    """
    even, odd = in_pairs(sums)
    x0, x1, x2, x3 = by_eights(gl.where(level == 0, even, odd))
    x2 = gl.where(level == 4, x1, x2)
    x3 = gl.where(level >= 3, x2, x3)
    x0, x1 = gl.where(level == 4, x1, x0), gl.where(level == 3, x0, x1)
    keep = gl.where(level == 0, 3, gl.where(level == 1, 2, 0))
    middle = from_lanes(together(x0, x1, x2, x3, even), keep, gl.where(level >= 3, 3, gl.where(level == 2, 1, 0)))
    return from_pairs(decay_of(even - middle), decay_of(odd - middle))


@gluon.constexpr_function
def lane_sums(way, bounds):
    """Of four lanes in a row: the sum of those behind a lane, or before it, and of all."""
    step = "shfl.sync.%s.b32 other|there, total, %d, %s, -1; @there add.f32 total, total, other; "
    first = step % (way, 1, bounds) + step % (way, 2, bounds)
    own = f"shfl.sync.{way}.b32 $0|there, total, 1, {bounds}, -1; @!there mov.f32 $0, 0f00000000; "
    every = f"shfl.sync.idx.b32 $1, total, {0 if way == 'down' else 3}, 0x1c03, -1; "
    return "{ .reg .pred there; .reg .f32 total, other; mov.f32 total, $2; " + first + own + every + "}"


BEHIND = gl.constexpr(lane_sums("down", "0x1c03"))
BEFORE = gl.constexpr(lane_sums("up", "0x1c00"))


@gluon.jit
def sums_of_lanes(x, WAY: gl.constexpr):
    """x (channel, 4, 4), the last axis four lanes: the sums over lanes behind each, or before it, and over all."""
    return gl.inline_asm_elementwise(WAY, "=&f,=&f,f", [x], dtype=(gl.float32, gl.float32), is_pure=True, pack=1)


@gluon.jit
def in_pairs(x):
    """X as (channel, 4, 4) twice: the even and the odd steps, by eights and lanes."""
    return gl.reshape(x, [K, 4, 4, 2]).split()


@gluon.jit
def by_eights(x):
    """(channel, 4, 4) -> four times (channel, 4)."""
    even, odd = gl.reshape(x, [K, 2, 2, 4]).permute((0, 1, 3, 2)).split()
    x0, x2 = even.permute((0, 2, 1)).split()
    x1, x3 = odd.permute((0, 2, 1)).split()
    return x0, x1, x2, x3


@gluon.jit
def together(x0, x1, x2, x3, like):
    """Back, in the layout of `like`."""
    even, odd = gl.join(x0, x2).permute((0, 2, 1)), gl.join(x1, x3).permute((0, 2, 1))
    x = gl.reshape(gl.join(even, odd).permute((0, 1, 3, 2)), [K, 4, 4])
    return gl.convert_layout(x, like.type.layout, assert_trivial=True)


@gluon.jit
def from_pairs(even, odd):
    """`in_pairs`, back."""
    return gl.convert_layout(gl.reshape(gl.join(even, odd), [K, STEPS]), X, assert_trivial=True)


@gluon.jit
def from_step_on(x):
    """Sums over steps from each on, of half of a block."""
    even, odd = in_pairs(x)
    both = even + odd
    behind, total = sums_of_lanes(both, BEHIND)
    _, x1, x2, x3 = by_eights(total)
    x2 += x3
    x1 += x2
    behind += together(x1, x2, x3, x3 * 0.0, behind)
    return from_pairs(behind + both, behind + odd)


@gluon.jit
def before_step(x):
    """Sums over steps before each: a running sum less its last term would lose digits."""
    even, odd = in_pairs(x)
    before, total = sums_of_lanes(even + odd, BEFORE)
    x0, x1, x2, _ = by_eights(total)
    x1 += x0
    x2 += x1
    before += together(x0 * 0.0, x0, x1, x2, before)
    return from_pairs(before, before + even)


@gluon.jit
def store_half(ptr, x, stride, left, h):
    """Writes x (channel, step) to rows `stride` apart, of which so many are left."""
    # As a number that the compiler does not know: else it keeps the offsets of all stores.
    step = gl.arange(0, STEPS, STEP)[None, :] + forget(gl.to_tensor(h * STEPS))
    channel = gl.arange(0, K, CHANNEL)[:, None]
    gl.store(ptr + (step * stride + channel), x.to(ptr.dtype.element_ty), mask=step < left)
