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
    """Where a sequence's places begin in an array that has one for every STEPS steps; see `Spec.places`."""
    if cu_seqlens_ptr is None:
        return number.to(gl.int64) * gl.cdiv(T, STEPS)
    else:
        return row // STEPS + number


@gluon.jit
def last_span(length, span, KEEP: gl.constexpr):
    """The number of the span in which a sequence ends."""
    return gl.maximum(gl.cdiv(length, KEEP) - 1, 0) // span


@gluon.jit
def fill_outside(ptr, number, sequences, start, stop, T, columns, offsets):
    """The first of packed sequences writes zeros before its start, the last behind its end."""
    if ptr is not None:
        zeros = gl.zeros_like(offsets).to(ptr.dtype.element_ty)
        for t in range(gl.where(number == 0, start, 0)):
            gl.store(ptr + t.to(gl.int64) * columns + offsets, zeros)
        for t in range(gl.where(number == sequences - 1, stop, T), T):
            gl.store(ptr + t.to(gl.int64) * columns + offsets, zeros)


@gluon.jit
def fill_places(ptr, number, sequences, start, length, T, columns, offsets, STEPS: gl.constexpr):
    """Of packed sequences, each writes zeros to the places after its own; the first also to those before."""
    if ptr is not None:
        zeros = gl.zeros_like(offsets).to(ptr.dtype.element_ty)
        place = start // STEPS + number
        after = gl.where(number == sequences - 1, T // STEPS + sequences, (start + length) // STEPS + number + 1)
        for p in range(gl.where(number == 0, 0, place), place):
            gl.store(ptr + p.to(gl.int64) * columns + offsets, zeros)  # type: ignore[attr-defined]
        for p in range(place + gl.cdiv(length, STEPS), after):
            gl.store(ptr + p.to(gl.int64) * columns + offsets, zeros)  # type: ignore[attr-defined]
