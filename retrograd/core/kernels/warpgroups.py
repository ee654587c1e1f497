"""Matrix products as a warpgroup of Hopper holds them, and vectors along their rows and columns."""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LENGTH = gl.constexpr(64)  # of a vector: the rows or columns of a product
WARPS = gl.constexpr(4)  # of a warpgroup


@gluon.constexpr_function
def products(columns):
    """How a warpgroup holds a matrix product (64, columns)."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def wide_rows(columns, warps):
    """(rows, columns) of 16-bit numbers, 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [256 // columns, columns // 8], [warps, 1], [1, 0])


@gluon.constexpr_function
def converting(DTYPE):
    """The instruction that rounds two fp32 numbers to 16 bits."""
    return "cvt.rn.bf16x2.f32" if gl.bfloat16 == DTYPE else "cvt.rn.f16x2.f32"


@gluon.constexpr_function
def widening(DTYPE):
    """The instructions that make fp32 of two numbers of 16 bits."""
    if gl.bfloat16 == DTYPE:
        return "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    return "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"


@gluon.jit
def in_fp32(x):
    """Numbers of 16 bits, in one instruction each; where, the compiler decides."""
    return gl.inline_asm_elementwise(widening(x.dtype), "=f,=f,r", [x], dtype=gl.float32, is_pure=True, pack=2)


@gluon.jit
def rounded(x, DTYPE: gl.constexpr):
    """fp32 in 16 bits, at this very point: a plain conversion would sink below the next product, which waits for it."""
    return gl.inline_asm_elementwise(
        converting(DTYPE) + " $0, $2, $1;", "=r,f,f", [x], dtype=DTYPE.value, is_pure=False, pack=2
    )


@triton.jit
def in_column_order(x):
    """(length, vectors) -> (vectors, length) with element 8 i + 2 k + b at k length / 4 + 2 i + b.

    What a thread has of the columns of a product then lies side by side, and is read 16 bytes at a time.
    """
    LENGTH: tl.constexpr = x.shape[0]
    COUNT: tl.constexpr = x.shape[1]
    return tl.reshape(tl.permute(tl.reshape(x, [LENGTH // 8, 4, 2, COUNT]), [3, 1, 0, 2]), [COUNT, LENGTH])


@triton.jit
def column_order(j, LENGTH: tl.constexpr):
    """Where element j of a vector lies then."""
    return j % 8 // 2 * (LENGTH // 4) + j // 8 * 2 + j % 2


@gluon.jit
def vector(memory, number: gl.constexpr, LAYOUT: gl.constexpr):
    """A vector along rows or columns of a product, from vectors of LENGTH one after another, flat.

    They lie in the order of `in_column_order`, in which a thread's elements along columns are side by side.
    """
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    own = memory.slice(number * LENGTH, LENGTH)._reinterpret(gl.float32, [4, LENGTH // 8, 2], FLAT).permute((1, 0, 2))
    like = gl.reshape(gl.arange(0, LENGTH, LAYOUT), [LENGTH // 8, 4, 2])
    return gl.convert_layout(gl.reshape(own.load(like.type.layout), [LENGTH]), LAYOUT, assert_trivial=True)


@gluon.jit
def end_of(memory, number: gl.constexpr, LAYOUT: gl.constexpr):
    """The last element of such a vector, (1,)."""
    return memory.slice(number * LENGTH + LENGTH - 1, 1).load(LAYOUT)


@gluon.jit
def clear_rows(ptr, stride, count, COLUMNS: gl.constexpr, WARPS: gl.constexpr):
    """Write zeros to so many rows, `stride` apart."""
    WIDE: gl.constexpr = wide_rows(COLUMNS, WARPS)
    ROWS: gl.constexpr = 256 * WARPS // COLUMNS
    t = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))[:, None]
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))[None, :]
    zeros = gl.zeros([ROWS, COLUMNS], ptr.dtype.element_ty, WIDE)
    for first in range(0, count, ROWS):
        gl.store(ptr + (gl.cast(first, gl.int64) * stride + (t * stride + column)), zeros, mask=t < count - first)


@gluon.jit
def tile_offsets(ROWS: gl.constexpr, COLUMNS: gl.constexpr, stride, LAYOUT: gl.constexpr):
    """Offsets in a tile whose rows lie `stride` apart."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    return rows * stride + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
