"""Whose states a program carries, and the spans of time into which some walks are cut."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.sequences import bounds_of, first_slot

from .arrays import Span, Walk
from .blocks import CHANNELS, SLOT, Q, slices_walked


@gluon.jit
def walk_of(walk, walks, OPTIONS: gl.constexpr):
    """A walk by its number."""
    slices = walks.H // walks.G * (OPTIONS.P // CHANNELS)
    OWN: gl.constexpr = slices_walked(OPTIONS.N)
    of_group = gl.cdiv(slices, OWN)
    group = walk // of_group % walks.G
    number = walk // of_group // walks.G
    row, first, length = bounds_of(number, walks)
    slot = first_slot(number, first, walks, SLOT)
    return Walk(walk % of_group * OWN, slices, group, number, row, first, length, slot)


@gluon.jit
def slice_of(walk, w, walks, OPTIONS: gl.constexpr):
    """Head and first channel of a walk's slice w; of the group's last one for those after it."""
    SLICES: gl.constexpr = OPTIONS.P // CHANNELS
    own = gl.minimum(walk.slice + w, walk.slices - 1)
    return walk.group * (walks.H // walks.G) + own // SLICES, own % SLICES * CHANNELS


@gluon.jit
def span_of(walks):
    """The span that a program takes."""
    cut = gl.program_id(0) - walks.whole
    walk = gl.where(cut < 0, gl.program_id(0), walks.whole + cut // walks.spans)
    return Span(walk, walk - walks.whole, gl.where(cut < 0, 0, cut % walks.spans))


@gluon.jit
def blocks_of(length, span, walks):
    """The first block of a program in its walk, and how many it takes."""
    count = gl.cdiv(length, Q)
    begin = span.part * walks.span
    if span.cut >= 0:
        count = gl.minimum(gl.maximum(count - begin, 0), walks.span)
    return begin, count


@gluon.jit
def block_at(i, length, BACK: gl.constexpr):
    """The block to which a walk comes i-th."""
    return gl.cdiv(length, Q) - 1 - i if BACK else i
