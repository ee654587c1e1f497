"""Device functions of both implementations: steps and rows of arrays, runs of ids. Symbols: README.md."""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)


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
