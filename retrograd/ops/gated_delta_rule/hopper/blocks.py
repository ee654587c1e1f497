"""What the kernels for Hopper share: sizes of a block, products, vectors of a block. Symbols: ../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

C = gl.constexpr(64)  # steps of a block
K = gl.constexpr(128)  # channels of a head's keys, and of its values
HALF = gl.constexpr(64)  # of them: what a program carries of the values
PARTS = gl.constexpr(2)
PLANES = gl.constexpr(4)  # of a block, which `vectors` makes: beta e^(y_end - y); e^y; scale e^y; y
UNIT = gl.constexpr(8)  # of strides: 16 bytes, in elements


@gluon.constexpr_function
def products(columns):
    """How a warpgroup holds a matrix product (64, columns)."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def converting(DTYPE):
    """The instruction that rounds two fp32 numbers to 16 bits."""
    return "cvt.rn.bf16x2.f32" if gl.bfloat16 == DTYPE else "cvt.rn.f16x2.f32"


@gluon.jit
def rounded(x, DTYPE: gl.constexpr):
    """fp32 in 16 bits, at this very point: a plain conversion would sink below the next product, which waits for it."""
    return gl.inline_asm_elementwise(
        converting(DTYPE) + " $0, $2, $1;", "=r,f,f", [x], dtype=DTYPE.value, is_pure=False, pack=2
    )


@gluon.jit
def widened(x):
    """16-bit numbers in fp32, at this very point: a plain conversion would be made after the next wait."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=f,=f,r",
            [x],
            dtype=gl.float32,
            is_pure=False,
            pack=2,
        )
    else:
        return gl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }",
            "=f,=f,r",
            [x],
            dtype=gl.float32,
            is_pure=False,
            pack=2,
        )


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
def vector(memory, number: gl.constexpr, LAYOUT: gl.constexpr):
    """A block's vector along columns of a product, from memory (PLANES, C) flat.

    Vectors lie in the order of `vectors.in_column_order`, in which a thread's elements along columns are side by side.
    """
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    own = memory.slice(number * C, C)._reinterpret(gl.float32, [4, C // 8, 2], FLAT).permute((1, 0, 2))
    like = gl.reshape(gl.arange(0, C, LAYOUT), [C // 8, 4, 2])
    return gl.convert_layout(gl.reshape(own.load(like.type.layout), [C]), LAYOUT, assert_trivial=True)


@gluon.jit
def end_of(memory, number: gl.constexpr, LAYOUT: gl.constexpr):
    """The last element of a block's vector, (1,)."""
    return memory.slice(number * C + C - 1, 1).load(LAYOUT)


@gluon.jit
def tile_offsets(ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Offsets in a dense tile."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    return rows * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def clear_outside(ptr, sequence, walks, head, heads, COLUMNS: gl.constexpr):
    """The first of packed sequences writes zeros before its start, the last after its end: COLUMNS of a head of K."""
    stride = heads * K
    ptr += head * K
    after = sequence.first + sequence.length
    clear_rows(ptr, stride, gl.where(sequence.number == 0, sequence.first, 0), COLUMNS)
    count = gl.where(sequence.number == walks.sequences - 1, walks.T - after, 0)
    clear_rows(ptr + gl.cast(after, gl.int64) * stride, stride, count, COLUMNS)


@gluon.constexpr_function
def wide_rows(columns):
    """(rows, columns) of 16-bit numbers, 16 bytes a thread of four warps."""
    return gl.BlockedLayout([1, 8], [256 // columns, columns // 8], [4, 1], [1, 0])


@gluon.jit
def clear_rows(ptr, stride, count, COLUMNS: gl.constexpr):
    """Write zeros to so many rows, `stride` apart."""
    WIDE: gl.constexpr = wide_rows(COLUMNS)
    ROWS: gl.constexpr = 1024 // COLUMNS
    t = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))[:, None]
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))[None, :]
    zeros = gl.zeros([ROWS, COLUMNS], ptr.dtype.element_ty, WIDE)
    for first in range(0, count, ROWS):
        gl.store(ptr + (gl.cast(first, gl.int64) * stride + (t * stride + column)), zeros, mask=t < count - first)
