"""How work is cut among programs, so that the last ones do not leave multiprocessors idle.

Walks may be cut into spans of time, which begin at states that `ahead` finds by a walk of the states alone, with the
bits of the walk; blocks of heads, which have sums of their own, may share a program. So these formulas may look at
anything: they decide the time, never the bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..spec import Spec

STEPS = 64  # of a block, Q; a place has two
MULTIPROCESSORS = 132  # of an H200, each of which takes one program
LEAST = 2  # places of a span
# Of the time that a walk takes for a block, what `ahead` takes, by the states of a program; and for how many places a
# walk has time while `ahead` begins and ends.
AHEAD = {32: 0.11, 64: 0.12, 128: 0.18}
AHEAD_BEGINNING = 1.5
PAIR_BEGINNING = 4  # as many slices take as long as the beginning and end of a program of `pairs`


@dataclass(frozen=True, slots=True)
class Spans:
    """How a pass cuts its walks.

    Attributes:
        whole: walks that a program takes whole; they come first.
        cut: the others.
        first: blocks of the first span.
        blocks: of the other spans.
        count: spans of a walk that is cut, of the longest there may be; 1 if none is.
    """

    whole: int
    cut: int
    first: int
    blocks: int
    count: int

    @property
    def programs(self) -> int:
        """All of them."""
        return self.whole + self.cut * self.count

    @property
    def scalars(self) -> dict[str, int]:
        """As kernels take it."""
        return {
            "whole": self.whole,
            "cut": max(self.cut, 1),
            "first": self.first,
            "span": self.blocks,
            "spans": self.count,
        }


def planned(spec: Spec, walks: int, slices: int) -> Spans:
    """Walks beyond full rounds of all multiprocessors are cut into as many spans as those have room for.

    Where all walks are cut, the first span is longer: `ahead` leaves some multiprocessors free, and nothing that it
    finds is needed there.
    """
    places = max(1, -(-spec.time // (2 * STEPS)))
    cut = walks % MULTIPROCESSORS
    room = MULTIPROCESSORS // cut if cut else 1
    if room == 1 or cut < walks:
        return spans(spec, walks, cut, max(LEAST, -(-places // room)))
    share = AHEAD[columns(cut * slices, spec.N)]
    each = max(LEAST, ceil((places * (1 - share) - AHEAD_BEGINNING) / (room - share)))
    return spans(spec, walks, cut, each, max(each, places - (room - 1) * each))


def spans(spec: Spec, walks: int, cut: int, places: int, first: int = 0) -> Spans:
    """So many walks cut into spans of so many places; the first of `first`, if that is given."""
    first = first or places
    behind = max(0, -(-spec.time // (2 * STEPS)) - first)
    count = 1 + -(-behind // places)
    cut = cut if count > 1 else 0
    return Spans(walks - cut, cut, 2 * first, 2 * places, count if cut else 1)


def columns(programs: int, N: int) -> int:
    """States of a program of `ahead`: as few as there are multiprocessors for, of `programs` with all N states each.

    A block takes less time with fewer, but two programs on one multiprocessor slow each other down.
    """
    return next((few for few in (32, 64) if programs * (N // few) <= MULTIPROCESSORS), min(N, 128))


def together(count: int, programs: int, slices: int) -> int:
    """How many blocks of heads a program of `pairs` takes one after the other, so that all end soonest.

    Args:
        count: blocks of a group.
        programs: programs if each takes all of them.
        slices: of a block.
    """

    def time(each: int) -> int:
        rounds = -(-programs * -(-count // each) // MULTIPROCESSORS)
        return rounds * (each * slices + PAIR_BEGINNING)

    return min(range(1, count + 1), key=time)
