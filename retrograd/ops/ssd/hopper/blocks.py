"""What the kernels for Hopper share: vectors of a block, products, what is parked. Symbols: ../README.md.

A slot is 128 steps of a sequence, two blocks of Q = 64. A slice is 64 channels of a head.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.warpgroups import converting, rounded

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
def halves(N):
    """Into how many parts the N states of a slice are cut."""
    return PARTS if N > WIDEST else 1


@gluon.constexpr_function
def slices_walked(N):
    """How many slices a walk has."""
    return PARTS // halves(N)


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
