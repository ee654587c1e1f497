"""What crosses a process's borders: whose states, from whom, to whom, and the steps beside a border."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .layout import Layout, Piece


class End(NamedTuple):
    """The steps of a sequence beside a border.

    Attributes:
        begin, end: the process's steps.
        border: whether the border is behind them; before them otherwise.
        whole: whether they are all steps of the sequence on this side of the border.
    """

    begin: int
    end: int
    border: bool
    whole: bool

    def part(self, x: Tensor, dim: int, steps: int) -> Tensor:
        """As many steps of x, beside the border."""
        return x.narrow(dim, self.end - steps if self.border else self.begin, steps)

    @property
    def length(self) -> int:
        """The number of all steps."""
        return self.end - self.begin

    def whole_is(self, steps: int) -> bool:
        """Whether these steps are all of the sequence on this side of the border."""
        return self.whole and steps == self.length


def end_of(piece: Piece, border: bool) -> End:
    """The steps of a sequence that crosses the border behind a process's piece of it, or before it."""
    return End(piece.begin, piece.end, border, piece.first if border else piece.last)


class Link(NamedTuple):
    """From whom a process's first state comes, and to whom its last one goes; None where no sequence crosses.

    Attributes:
        source, target: ranks of the group.
        entry, exit: the steps of the sequences that cross.
        enters, leaves: the rows of the states that cross.
    """

    source: int | None
    target: int | None
    entry: End | None
    exit: End | None
    enters: slice
    leaves: slice


def link_of(layout: Layout, reverse: bool) -> Link:
    """The neighbours of a rank in the direction of a scan."""
    before, after = (layout.crosses(layout.rank + border) for border in (0, 1))
    source, target = (layout.rank - 1 if before else None), (layout.rank + 1 if after else None)
    first, last = slice(None), slice(None)
    if layout.bounds is not None:
        count = len(layout.cu_seqlens) - 1
        first, last = slice(0, 1), slice(count - 1, count)
    pieces = layout.pieces
    start = end_of(pieces[0], border=False) if before else None
    stop = end_of(pieces[-1], border=True) if after else None
    if reverse:
        return Link(target, source, stop, start, last, first)
    return Link(source, target, start, stop, first, last)
