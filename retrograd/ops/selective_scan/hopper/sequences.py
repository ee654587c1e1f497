"""Where a program's sequence and its span of time lie, and the places in memory that belong to none."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def sequence(number, T, cu_seqlens_ptr):
    """First row and length of a sequence; of a packed one, clamped to rows that exist."""
    if cu_seqlens_ptr is None:
        return number.to(gl.int64) * T, T
    else:
        start = gl.minimum(gl.maximum(gl.load(cu_seqlens_ptr + number), 0), T)
        stop = gl.minimum(gl.maximum(gl.load(cu_seqlens_ptr + number + 1), start), T)
        return start.to(gl.int64), stop - start


@gluon.jit
def first_place(number, row, T, cu_seqlens_ptr, STEPS: gl.constexpr):
    """Where a sequence's places begin in an array that has one for every STEPS steps; see `core.chunks.places`."""
    if cu_seqlens_ptr is None:
        return number.to(gl.int64) * gl.cdiv(T, STEPS)
    else:
        return row // STEPS + number


@gluon.jit
def span_of(T, cu_seqlens_ptr, span, spans, blocks, KEEP: gl.constexpr):
    """Which span a program walks, for which of `blocks` blocks of channels.

    Returns the block, the sequence's number, the span's number in it; the sequence's first row and its length; the
    span's, and the place of its first chunk.
    """
    block = gl.program_id(0) % blocks
    part = gl.program_id(0) // blocks % spans
    number = gl.program_id(0) // blocks // spans
    start, whole = sequence(number, T, cu_seqlens_ptr)
    begin = part * span * KEEP
    length = gl.minimum(gl.maximum(whole - begin, 0), span * KEEP)
    place = first_place(number, start, T, cu_seqlens_ptr, KEEP) + part * span
    return block, number, part, start, whole, start + begin, length, place


@gluon.jit
def at_row(ptr, strides, number, row, T, cu_seqlens_ptr, offset, UNIT: gl.constexpr):
    """An array as `steps.fetch` takes it, from a sequence's row on; strides (batch, time) are in UNIT elements."""
    batch = (number if cu_seqlens_ptr is None else number * 0).to(gl.int64)
    time = row - batch * T
    return ptr + (batch * strides[0] + time * strides[1]) * UNIT + offset, strides[1]


@gluon.jit
def last_span(length, span, KEEP: gl.constexpr):
    """The number of the span in which a sequence ends."""
    return gl.maximum(gl.cdiv(length, KEEP) - 1, 0) // span


@gluon.jit
def fill(ptr, first, end, columns, offsets):
    """Write zeros to lines of so many columns."""
    zeros = gl.zeros_like(offsets).to(ptr.dtype.element_ty)
    for line in range(first, end):
        gl.store(ptr + line.to(gl.int64) * columns + offsets, zeros)


@gluon.jit
def fill_outside(ptr, number, sequences, start, stop, T, columns, offsets):
    """The first of packed sequences writes zeros before its start, the last behind its end."""
    if ptr is not None:
        fill(ptr, 0, gl.where(number == 0, start, 0), columns, offsets)
        fill(ptr, gl.where(number == sequences - 1, stop, T), T, columns, offsets)


@gluon.jit
def fill_places(ptr, number, sequences, start, length, T, columns, offsets, STEPS: gl.constexpr):
    """Of packed sequences, each writes zeros to the places after its own; the first also to those before."""
    if ptr is not None:
        place = start // STEPS + number
        after = gl.where(number == sequences - 1, T // STEPS + sequences, (start + length) // STEPS + number + 1)
        fill(ptr, gl.where(number == 0, 0, place), place, columns, offsets)
        fill(ptr, place + gl.cdiv(length, STEPS), after, columns, offsets)
