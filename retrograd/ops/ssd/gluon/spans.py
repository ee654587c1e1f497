"""How work is cut among programs, so that the last ones do not leave multiprocessors idle.

Walks may be cut into spans of time, which begin at states that `ahead` finds by a walk of the states alone, with the
bits of the walk; blocks of heads, which have sums of their own, may share a program. So these formulas may look at
anything: they decide the time, never the bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..spec import Spec

STEPS = 64  # of a block, Q; a place has two
MULTIPROCESSORS = 132  # of an H200, each of which takes one program
LEAST = 2  # places of a span
MIDDLE_PROGRAMS = 6  # programs of `middle` for each multiprocessor, at least
PAIR_BEGINNING = 4  # as many slices take as long as the beginning and end of a program of `pairs`


@dataclass(frozen=True, slots=True)
class Spans:
    """How a pass cuts its walks.

    Attributes:
        whole: walks that a program takes whole; they come first.
        cut: the others.
        blocks: of a span.
        count: spans of a walk that is cut, of the longest there may be; 1 if none is.
    """

    whole: int
    cut: int
    blocks: int
    count: int

    @property
    def programs(self) -> int:
        """All of them."""
        return self.whole + self.cut * self.count

    @property
    def scalars(self) -> dict[str, int]:
        """As kernels take it."""
        return {"whole": self.whole, "span": self.blocks, "spans": self.count}


def planned(spec: Spec, walks: int) -> Spans:
    """Walks beyond full rounds of all multiprocessors are cut into as many spans as those have room for."""
    places = max(1, -(-spec.time // (2 * STEPS)))
    cut = walks % MULTIPROCESSORS
    room = MULTIPROCESSORS // cut if cut else 1
    return spans(spec, walks, cut, max(LEAST, -(-places // room)))


def spans(spec: Spec, walks: int, cut: int, places: int) -> Spans:
    """So many walks cut into spans of so many places."""
    count = max(1, -(-spec.time // (2 * STEPS * places)))
    cut = cut if count > 1 else 0
    return Spans(walks - cut, cut, 2 * places, count if cut else 1)


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


def sharing(count: int, programs: int, most: int) -> int:
    """How many of a group's heads a program of `middle` takes, which then share B: as many as leave enough programs.

    Args:
        count: heads of a group.
        programs: programs if each takes all of them.
        most: heads of a program.
    """
    return max(1, min(most, count, programs * count // (MIDDLE_PROGRAMS * MULTIPROCESSORS)))
