"""What the kernels for Hopper share: sizes of a block, products, vectors of a block. Symbols: ../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.warpgroups import WARPS, clear_rows, converting, widening

C = gl.constexpr(64)  # steps of a block
K = gl.constexpr(128)  # channels of a head's keys, and of its values
HALF = gl.constexpr(64)  # of them: what a program carries of the values
PARTS = gl.constexpr(2)
PLANES = gl.constexpr(4)  # of a block, which `vectors` makes: beta e^(y_end - y); e^y; scale e^y; y
UNIT = gl.constexpr(8)  # of strides: 16 bytes, in elements


@gluon.jit
def widened(x):
    """16-bit numbers in fp32, at this very point: a plain conversion would be made after the next wait."""
    return gl.inline_asm_elementwise(widening(x.dtype), "=f,=f,r", [x], dtype=gl.float32, is_pure=False, pack=2)


@gluon.constexpr_function
def scaling(DTYPE):
    """The instructions that multiply two numbers of 16 bits by fp32 ones, and round."""
    if gl.bfloat16 == DTYPE:
        widen = "shl.b32 low, $1, 16; and.b32 high, $1, 0xffff0000; "
    else:
        widen = ".reg .b16 a, b; mov.b32 {a, b}, $1; cvt.f32.f16 low, a; cvt.f32.f16 high, b; "
    multiply = "mul.f32 low, low, $2; mul.f32 high, high, $3; "
    return "{ .reg .b32 low, high; " + widen + multiply + converting(DTYPE) + " $0, high, low; }"


@gluon.jit
def scaled(x, factors):
    """16-bit numbers times fp32 ones along columns, in 16 bits."""
    _, by = gl.broadcast(x, factors[None, :])
    return gl.inline_asm_elementwise(scaling(x.dtype), "=r,r,f,f", [x, by], dtype=x.dtype, is_pure=False, pack=2)


@gluon.jit
def slot_entering(kept, slot, c, KEPT: gl.constexpr, IS_KEPT: gl.constexpr):
    """The slot of the state that enters block c, among kept ones, or among the others. kept, slot: of a sequence.

    With one other state for each kept one, both have the same slot; with more, each has that of its block.
    """
    if IS_KEPT or KEPT == 2:
        return kept + c // KEPT
    else:
        return slot + c


@gluon.jit
def clear_outside(ptr, sequence, walks, head, heads, COLUMNS: gl.constexpr):
    """The first of packed sequences writes zeros before its start, the last after its end: COLUMNS of a head of K."""
    stride = heads * K
    ptr += head * K
    after = sequence.first + sequence.length
    clear_rows(ptr, stride, gl.where(sequence.number == 0, sequence.first, 0), COLUMNS, WARPS)
    count = gl.where(sequence.number == walks.sequences - 1, walks.T - after, 0)
    clear_rows(ptr + gl.cast(after, gl.int64) * stride, stride, count, COLUMNS, WARPS)
