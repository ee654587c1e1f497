"""What the kernels for Hopper share: vectors of a block, products, what is parked. Symbols: ../README.md.

A slot is 128 steps of a sequence, two blocks of Q = 64. A slice is 64 channels of a head.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

Q = gl.constexpr(64)  # steps of a block
SLOT = gl.constexpr(128)  # steps of a slot
CHANNELS = gl.constexpr(64)  # of a slice
PARTS = gl.constexpr(2)  # of a walk: two slices, or the halves of the states of one
WIDEST = gl.constexpr(128)  # states of a part
# A product (64, 64) as `park` leaves it.
PARKED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [6, 5, 4, 3, 2, 1, 0]))
UNIT = gl.constexpr(8)  # of strides: 16 bytes, in elements
VECTORS = gl.constexpr(4)  # of a block, which `prepare` makes: 2^(e - s) delta; s; 2^s; delta


@gluon.constexpr_function
def products(columns):
    """How a warpgroup holds a matrix product (64, columns)."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def halves(N):
    """Into how many parts the N states of a slice are cut."""
    return PARTS if N > WIDEST else 1


@gluon.constexpr_function
def slices_walked(N):
    """How many slices a walk has."""
    return PARTS // halves(N)


@gluon.constexpr_function
def wide_rows(columns, warps):
    """(rows, columns) of 16-bit numbers, 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [256 // columns, columns // 8], [warps, 1], [1, 0])


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
def scaled(x, factors):
    """16-bit numbers times fp32 ones along columns, in 16 bits."""
    _, by = gl.broadcast(x, factors[None, :])
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "{ .reg .b32 low, high; shl.b32 low, $1, 16; and.b32 high, $1, 0xffff0000; "
            "mul.f32 low, low, $2; mul.f32 high, high, $3; cvt.rn.bf16x2.f32 $0, high, low; }",
            "=r,r,f,f",
            [x, by],
            dtype=gl.bfloat16,
            is_pure=False,
            pack=2,
        )
    else:
        return rounded(x.to(gl.float32) * by, x.dtype)


@gluon.jit
def masked(x, bits, DTYPE: gl.constexpr):
    """fp32 in 16 bits, of which only some are kept: those of an int16."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 both; " + converting(DTYPE) + " both, $2, $1; and.b32 $0, both, $3; }",
        "=r,f,f,r",
        [x, bits],
        dtype=DTYPE.value,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def vector(memory, number: gl.constexpr, LAYOUT: gl.constexpr):
    """A block's vector along rows or columns of a product, from memory (VECTORS or less, Q) flat.

    Vectors lie in the order of `prepare.in_column_order`, in which a thread's elements along columns are side by side.
    """
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    own = memory.slice(number * Q, Q)._reinterpret(gl.float32, [4, Q // 8, 2], FLAT).permute((1, 0, 2))
    like = gl.reshape(gl.arange(0, Q, LAYOUT), [Q // 8, 4, 2])
    return gl.convert_layout(gl.reshape(own.load(like.type.layout), [Q]), LAYOUT, assert_trivial=True)


@gluon.jit
def end_of(memory, number: gl.constexpr, LAYOUT: gl.constexpr):
    """The last element of a block's vector, (1,)."""
    return memory.slice(number * Q + Q - 1, 1).load(LAYOUT)


@gluon.jit
def park(memory, x):
    """Leave a product (64, 64) in shared memory, for the same threads or their likes in another warpgroup.

    16 bytes of a thread lie beside those of the next. Memory: (2, 4, 4, 8, 4, 2, 2), as PARKED.
    """
    memory.permute((2, 0, 3, 1, 5, 4, 6)).store(gl.reshape(x, [4, 2, 8, 4, 2, 4, 2]))


@gluon.jit
def parked(memory, LAYOUT: gl.constexpr):
    """What `park` has left."""
    LIKE: gl.constexpr = gl.reshape(gl.zeros([Q, Q], gl.float32, LAYOUT), [4, 2, 8, 4, 2, 4, 2]).type.layout
    x = gl.reshape(memory.permute((2, 0, 3, 1, 5, 4, 6)).load(LIKE), [Q, Q])
    return gl.convert_layout(x, LAYOUT, assert_trivial=True)


@gluon.jit
def clear_rows(ptr, stride, count, COLUMNS: gl.constexpr, WARPS: gl.constexpr):
    """Write zeros to so many rows of 16-bit numbers, `stride` apart."""
    WIDE: gl.constexpr = wide_rows(COLUMNS, WARPS)
    ROWS: gl.constexpr = 256 * WARPS // COLUMNS
    t = gl.arange(0, ROWS, gl.SliceLayout(1, WIDE))[:, None]
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))[None, :]
    zeros = gl.zeros([ROWS, COLUMNS], ptr.dtype.element_ty, WIDE)
    for first in range(0, count, ROWS):
        gl.store(ptr + (gl.cast(first, gl.int64) * stride + (t * stride + column)), zeros, mask=t < count - first)
