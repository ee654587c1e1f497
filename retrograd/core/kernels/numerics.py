"""Numeric helpers that kernels share, and the arithmetic of strided rows."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_REST = tl.constexpr(1.92596298909109e-08)  # what float32 leaves of it
MOST_HALVINGS = tl.constexpr(16)  # in `pairwise_sum`


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); where exp(-x) overflows to infinity, the quotient is 0, as it should be."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def sigmoid_grad(x):
    """The derivative of sigmoid: sigmoid(x) * (1 - sigmoid(x))."""
    s = sigmoid(x)
    return s * (1.0 - s)


@triton.jit
def silu(x):
    """Silu: x * sigmoid(x)."""
    return x * sigmoid(x)


@triton.jit
def silu_grad(x):
    """The derivative of silu: sigmoid(x) * (1 + x * (1 - sigmoid(x)))."""
    s = sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


@triton.jit
def log1p_unit(e):
    """log(1 + e) for e in [0, 1], to the last bit or two: 2 artanh(e / (2 + e)) by its series."""
    s = e / (2.0 + e)
    q = s * s
    p = q * (1.0 / 15.0) + 1.0 / 13.0
    p = p * q + 1.0 / 11.0
    p = p * q + 1.0 / 9.0
    p = p * q + 1.0 / 7.0
    p = p * q + 1.0 / 5.0
    p = p * q + 1.0 / 3.0
    return 2.0 * (s + s * q * p)


@triton.jit
def tanh(x):
    """tanh(x) as a quotient of polynomials, with a relative error below 2^-21 everywhere; NaN stays NaN.

    By exponentials the error of a small result would be large beside it. The coefficients are those of the least
    relative error, 2.1e-8, up to 9.01, where float32 rounds tanh to 1.
    """
    x = tl.maximum(x, -9.01, propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, 9.01, propagate_nan=tl.PropagateNan.ALL)
    q = x * x
    over = tl.fma(q, 1.333685961668607e-08, 2.059628241113387e-05)
    over = tl.fma(over, q, 0.003494811477139592)
    over = tl.fma(over, q, 0.13380372524261475)
    over = tl.fma(over, q, 1.0)
    under = tl.fma(q, 7.769288004055852e-07, 0.0003284364065621048)
    under = tl.fma(under, q, 0.025874027982354164)
    under = tl.fma(under, q, 0.46713685989379883)
    under = tl.fma(under, q, 1.0)
    return x * over / under


@triton.jit
def softplus(x):
    """log(1 + exp(x))."""
    return tl.maximum(x, 0.0) + log1p_unit(tl.exp2(-tl.abs(x) * LOG2E))


@triton.jit
def row_offsets(rows, inner_dims, strides):
    """Element offsets of rows in a tensor whose rows do not lie at one stride.

    Args:
        rows: row numbers, in row-major order over (outer, *reversed(inner_dims)).
        inner_dims: sizes of the inner row dimensions, innermost first; empty where one stride serves.
        strides: one for each inner dimension, innermost first, then the outermost's.
    """
    offsets = tl.zeros_like(rows).to(tl.int64)
    rest = rows
    for i in tl.static_range(len(inner_dims)):
        offsets += (rest % inner_dims[i]).to(tl.int64) * strides[i]
        rest = rest // inner_dims[i]
    return offsets + rest.to(tl.int64) * strides[len(inner_dims)]


@triton.jit
def load_tile(ptr, rows, head, columns, inner_dims, strides, mask):
    """Load the tile (rows, columns) of one head from an array of dense columns; None stays None.

    `strides` holds the rows' strides as `row_offsets` takes them, then the head's.
    """
    if ptr is None:
        return  # not `return None`: Triton has no None to return
    else:
        last: tl.constexpr = len(inner_dims)
        start = row_offsets(rows, inner_dims, strides) + tl.cast(head, tl.int64) * strides[last + 1]
        return tl.load(ptr + start[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def load_parameter(ptr, head, columns, head_stride, mask, ROWS: tl.constexpr):
    """Load a parameter's row for one head as fp32, shaped (1, columns), to go with tiles of ROWS rows.

    Beside tiles of one row it is loaded as a tile itself, which gives it their layout and saves a trip through shared
    memory; beside taller tiles the same would bring the layout of the parameter upon the tiles.
    """
    if ptr is None:
        return
    else:
        offsets = tl.cast(head, tl.int64) * head_stride + columns
        if ROWS == 1:
            return tl.load(ptr + offsets[None, :], mask=mask[None, :], other=0.0).to(tl.float32)
        else:
            return tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)[None, :]


@triton.jit
def tile_mask(rows, row_count, columns, column_count: tl.constexpr, WHOLE: tl.constexpr):
    """Which elements of a tile exist; with WHOLE every column does, and the comparison disappears."""
    mask = (rows < row_count)[:, None]
    if not WHOLE:
        mask = mask & (columns < column_count)[None, :]
    return mask


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Wait until the kernel before this one has ended and its stores are seen.

    It comes before the first access to memory that the kernel before may write, or be reading where this one writes.
    What was there before that kernel may be read sooner, since that one has waited too.

    Programs that learn from counters in memory that what they read is complete, and write nothing that the kernel
    before reads, need not wait. One of them does, before `let_next_start`: then this kernel ends after that one.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start(OVERLAP: tl.constexpr):
    """From here on the next kernel's programs may be set up; they still wait for this kernel's end."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def forget(x):
    """x itself, as a value that the compiler knows nothing of: what was made of x is made again from it, not kept.

    NVIDIA only.
    """
    if x.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1)


@triton.jit
def rounded_product(x, y):
    """x * y in fp32, rounded before anything is added to it.

    Of a sum over lanes each lane has a copy. Where the compiler may fuse a lane's own product with the first addition,
    copies differ in the last bit, and which of them a store to one place leaves there is not defined.
    """
    return tl.fma(x, y, 0.0)


@triton.jit
def add_compensated(total, lost, x):
    """Kahan's summation: total + x, and what the rounding of it lost, to be taken off the next x."""
    y = x - lost
    added = total + y
    return added, (added - total) - y


@triton.jit
def pairwise_sum(x):
    """x (rows, columns) -> (rows,): sums over columns, a power of two, in an order that does not depend on the layout.

    `tl.sum` adds what a thread holds first, and that depends on how well the addresses of x are aligned.
    """
    for _ in tl.static_range(MOST_HALVINGS):
        if x.shape[1] > 1:
            left, right = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
            x = left + right
    return tl.reshape(x, [x.shape[0]])
