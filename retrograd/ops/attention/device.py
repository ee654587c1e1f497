"""Device functions of both implementations: steps and rows of arrays, runs of ids. Symbols: README.md."""

import triton
import triton.language as tl

from .op import FORMS

LN2 = tl.constexpr(0.6931471805599453)
ROUNDS = tl.constexpr(7)


@triton.jit
def unsigned(start):
    """Where a run of equal ids begins; see `runs`."""
    return tl.where(start < 0, -1 - start, start)


@triton.jit
def load_steps(array, batch, first, step, count, head, column, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The tile (steps, columns) of a head; zeros for steps that are none."""
    start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
    offsets = (first + step).to(tl.int64)[:, None] * array.step + column.to(tl.int64)[None, :] * array.column
    mask = ((step >= 0) & (step < count))[:, None]
    if COLUMNS != BLOCK:
        mask = mask & (column < COLUMNS)[None, :]
    return tl.load(start + offsets, mask=mask, other=0.0)


@triton.jit
def load_row(array, batch, first, step, count, head):
    """Numbers of steps of a head, fp32; zeros for steps that are none."""
    start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
    return tl.load(start + (first + step).to(tl.int64) * array.step, mask=(step >= 0) & (step < count), other=0.0)


@triton.jit
def store_row(array, values, batch, first, step, count, head):
    """Store numbers of steps of a head."""
    start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
    tl.store(start + (first + step).to(tl.int64) * array.step, values, mask=(step >= 0) & (step < count))


@triton.jit
def store_steps(array, values, batch, first, step, count, head, column, COLUMNS: tl.constexpr):
    """Store the tile (steps, columns) of a head, if there is such an array."""
    if array.pointer is not None:
        start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
        offsets = (first + step).to(tl.int64)[:, None] * array.step + column.to(tl.int64)[None, :] * array.column
        mask = ((step >= 0) & (step < count))[:, None] & (column < COLUMNS)[None, :]
        tl.store(start + offsets, values.to(array.pointer.dtype.element_ty), mask=mask)


@triton.constexpr_function
def upscale(DROPPED):
    """The factor of what dropout keeps."""
    return 1.0 / (1.0 - DROPPED / FORMS)


@triton.jit
def wide_product(x, FACTOR: tl.constexpr, IN_PTX: tl.constexpr):
    """The high and the low word of x FACTOR; in PTX by one instruction, which the compiler would take apart."""
    if IN_PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .b64 both; mul.wide.u32 both, $2, $3; mov.b64 {$1, $0}, both; }",
            "=r,=r,r,r",
            [x, tl.cast(FACTOR, tl.uint32)],
            dtype=(tl.uint32, tl.uint32),
            is_pure=True,
            pack=1,
        )
    else:
        return tl.umulhi(x, tl.cast(FACTOR, tl.uint32)), x * tl.cast(FACTOR, tl.uint32)


@triton.jit
def philox(a, b, c, d, key, IN_PTX: tl.constexpr):
    """The four words of each counter (a, b, c, d), whose parts may have other shapes; all is uint32.

    What follows from some parts of the counter alone is computed in their shape.
    """
    other = tl.cast(0, tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high, low = wide_product(a, 0xD2511F53, IN_PTX)
        higher, lower = wide_product(c, 0xCD9E8D57, IN_PTX)
        a, b, c, d = higher ^ b ^ key, lower, high ^ d ^ other, low
        key = key + tl.cast(0x9E3779B9, tl.uint32)
        other = other + tl.cast(0xBB67AE85, tl.uint32)
    return a, b, c, d
