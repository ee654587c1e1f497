"""Whose states a program carries, and the spans of time into which some walks are cut.

`sizes` are (T, sequences, H, G), `plan` (whole, span, spans): the first `whole` walks take a program each, the others
are cut into `spans` of `span` blocks.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..device import bounds_of, first_place
from .blocks import CHANNELS, PLACE, Q, slices_walked


@gluon.jit
def walk_of(walk, sizes, cu_seqlens_ptr, P: gl.constexpr, N: gl.constexpr):
    """The first of a walk's slices in its group, and how many slices the group has; the group.

    Then the sequence's number, row, first step, length and first place.
    """
    T, _, H, G = sizes
    slices = H // G * (P // CHANNELS)
    OWN: gl.constexpr = slices_walked(N)
    walks = gl.cdiv(slices, OWN)
    group = walk // walks % G
    number = walk // walks // G
    row, first, length = bounds_of(number, T, cu_seqlens_ptr)
    place = first_place(number, first, T, cu_seqlens_ptr, PLACE)
    return walk % walks * OWN, slices, group, number, row, first, length, place


@gluon.jit
def slice_of(number, slices, group, sizes, P: gl.constexpr):
    """Head and first channel of a group's slice; of the last one for those behind it."""
    _, _, H, G = sizes
    own = gl.minimum(number, slices - 1)
    return group * (H // G) + own // (P // CHANNELS), own % (P // CHANNELS) * CHANNELS


@gluon.jit
def span_of(plan):
    """A program's walk, which of those that are cut it is, if it is, and which of its spans."""
    whole, _, spans = plan
    cut = gl.program_id(0) - whole
    walk = gl.where(cut < 0, gl.program_id(0), whole + cut // spans)
    return walk, walk - whole, gl.where(cut < 0, 0, cut % spans)


@gluon.jit
def blocks_of(length, cut, part, plan):
    """The first block of a program in its walk, and how many it takes."""
    _, span, _ = plan
    count = gl.cdiv(length, Q)
    begin = part * span
    if cut >= 0:
        count = gl.minimum(gl.maximum(count - begin, 0), span)
    return begin, count


@gluon.jit
def block_at(i, length, BACK: gl.constexpr):
    """The block to which a walk comes i-th."""
    return gl.cdiv(length, Q) - 1 - i if BACK else i


@gluon.jit
def tile_offsets(ROWS: gl.constexpr, COLUMNS: gl.constexpr, stride, LAYOUT: gl.constexpr):
    """Of a tile whose rows lie `stride` apart."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    return rows * stride + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))[None, :]
