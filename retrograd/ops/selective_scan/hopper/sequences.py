"""Where a program's sequence and its span of time lie, and the slots in memory that belong to none."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .arrays import Span, Steps


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
def first_slot(number, row, T, cu_seqlens_ptr, STEPS: gl.constexpr):
    """Where a sequence's slots begin in an array that has one for every STEPS steps; see `core.spec.slot_count`."""
    if cu_seqlens_ptr is None:
        return number.to(gl.int64) * gl.cdiv(T, STEPS)
    else:
        return row // STEPS + number


@gluon.jit
def span_of(lengths, cu_seqlens_ptr, blocks, CHUNK: gl.constexpr):
    """The span that a program walks, for one of `blocks` blocks of channels."""
    block = gl.program_id(0) % blocks
    part = gl.program_id(0) // blocks % lengths.spans
    number = gl.program_id(0) // blocks // lengths.spans
    start, whole = sequence(number, lengths.time, cu_seqlens_ptr)
    begin = part * lengths.span * CHUNK
    length = gl.minimum(gl.maximum(whole - begin, 0), lengths.span * CHUNK)
    slot = first_slot(number, start, lengths.time, cu_seqlens_ptr, CHUNK) + part * lengths.span
    return Span(block, number, part, start, whole, start + begin, length, slot)


@gluon.jit
def at_row(array, number, row, T, cu_seqlens_ptr, offset, UNIT: gl.constexpr):
    """An array from a row of a sequence on; its strides are in UNIT elements."""
    batch = (number if cu_seqlens_ptr is None else number * 0).to(gl.int64)
    time = row - batch * T
    return Steps(array.pointer + (batch * array.batch + time * array.time) * UNIT + offset, array.time)


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
def fill_outside(ptr, span, lengths, columns, offsets):
    """The first of packed sequences writes zeros before its start, the last after its end."""
    if ptr is not None:
        start = span.start.to(gl.int32)
        stop = start + span.whole
        fill(ptr, 0, gl.where(span.number == 0, start, 0), columns, offsets)
        fill(ptr, gl.where(span.number == lengths.sequences - 1, stop, lengths.time), lengths.time, columns, offsets)


@gluon.jit
def fill_slots(ptr, span, lengths, columns, offsets, STEPS: gl.constexpr):
    """Of packed sequences, each writes zeros to the slots after its own; the first also to those before."""
    if ptr is not None:
        start = span.start.to(gl.int32)
        slot = start // STEPS + span.number
        last = span.number == lengths.sequences - 1
        all_places = lengths.time // STEPS + lengths.sequences
        after = gl.where(last, all_places, (start + span.whole) // STEPS + span.number + 1)
        fill(ptr, gl.where(span.number == 0, 0, slot), slot, columns, offsets)
        fill(ptr, slot + gl.cdiv(span.whole, STEPS), after, columns, offsets)
