"""How work is cut among programs, so that the last ones do not leave multiprocessors idle.

Walks may be cut into spans of time, which begin at states that `ahead` finds by a walk of the states alone, with the
bits of the walk; blocks of heads, which have sums of their own, may share a program. So these formulas may look at
anything: they decide the time, never the bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.chunks import places
from retrograd.core.spec import Pass

from ..op import Spec
from . import blocks

PLACE = blocks.PLACE.value
CHANNELS = blocks.CHANNELS.value
STEPS = 64  # of a block, Q; a place has two
MULTIPROCESSORS = 132  # of an H200, each of which takes one program
LEAST = 2  # places of a span
# Of a program that finds the states between kept ones: states, slices at most.
MIDDLE_STATES, MIDDLE_SLICES = 128, 8
MIDDLE_PROGRAMS = 6  # programs of `middle` for each multiprocessor, at least
PAIR_BEGINNING = 4  # as many slices take as long as the beginning and end of a program of `pairs`
# Of a block, over which dB and dC are summed at once, at most; by halves of the states.
SUMMED_HEADS = {1: 40, 2: 64}
LEAST_BLOCKS = 2  # of heads for each place, if there are as many heads: few heads often come with few steps


@dataclass(frozen=True, slots=True)
class Spans:
    """How a pass cuts its walks.

    Attributes:
        whole: walks that a program takes whole; they come first.
        cut: the others.
        blocks: of a span.
        count: spans of a walk that is cut, of the longest there may be; 1 if none is.
        places: of the longest sequence there may be.
    """

    whole: int
    cut: int
    blocks: int
    count: int
    places: int

    @classmethod
    def of(cls, walks: int, cut: int, length: int, places: int) -> Spans:
        """So many of the walks cut into spans of `length` places, where the longest sequence has `places`."""
        count = max(1, -(-places // length))
        cut = cut if count > 1 else 0
        return cls(walks - cut, cut, 2 * length, count if cut else 1, places)

    def recut(self, share: float, length: int) -> Spans:
        """This share of the walks cut into spans of `length` places."""
        walks = self.whole + self.cut
        return Spans.of(walks, round(share * walks), length, self.places)

    @property
    def programs(self) -> int:
        """All of them."""
        return self.whole + self.cut * self.count

    @property
    def scalars(self) -> dict[str, int]:
        """As kernels take it."""
        return {"whole": self.whole, "span": self.blocks, "spans": self.count}


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pass is cut among programs.

    Attributes:
        spans: of its walks.
        columns: states that a program of `ahead` takes, or all, if there are fewer.
        together: blocks of heads that a program of `pairs` takes one after the other, or all of a group.
        sharing: heads that a program of `middle` takes, or all of a group, or as many as it has room for.
    """

    spans: Spans
    columns: int
    together: int
    sharing: int


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    spans = cut(walks(spec), max(1, -(-spec.time // PLACE)))
    return Plan(
        spans,
        columns(spans.cut * walked(spec), spec.N),
        together(head_blocks(spec), programs_of_pairs(spec), heads(spec) * slices(spec)),
        sharing(spec.heads // spec.groups, programs_of_middle(spec), MIDDLE_SLICES // slices(spec)),
    )


def slices(spec: Spec) -> int:
    """Slices of a head."""
    return spec.P // CHANNELS


def walked(spec: Spec) -> int:
    """Slices of a walk."""
    return int(blocks.slices_walked(spec.N))


def halves(spec: Spec) -> int:
    """Programs, or warpgroups, that share the states of a slice."""
    return int(blocks.halves(spec.N))


def walks(spec: Spec) -> int:
    """Walks of a pass, through all sequences."""
    return spec.sequences * spec.groups * -(-(spec.heads // spec.groups * slices(spec)) // walked(spec))


def heads(spec: Spec) -> int:
    """Heads of a block, over which dB and dC are summed: those of a group, in blocks of about the same size."""
    each = spec.heads // spec.groups
    fewest = min(each, -(-LEAST_BLOCKS // (spec.groups * halves(spec))))
    return -(-each // max(fewest, -(-each // SUMMED_HEADS[halves(spec)])))


def head_blocks(spec: Spec) -> int:
    """Such blocks of a group."""
    return -(-(spec.heads // spec.groups) // heads(spec))


def kept_places(spec: Spec) -> int:
    """The forward pass keeps what enters every so many places of a sequence."""
    return spec.chunk // PLACE


def programs_of_pairs(spec: Spec) -> int:
    """Programs of `pairs`, if each takes all blocks of heads of a group."""
    return spec.batch * places(spec, PLACE) * halves(spec) * spec.groups


def programs_of_middle(spec: Spec) -> int:
    """Programs of `middle`, if each takes all heads of a group."""
    return spec.batch * spec.chunks * (spec.N // MIDDLE_STATES) * spec.groups


def cut(walks: int, places: int) -> Spans:
    """Walks beyond full rounds of all multiprocessors are cut into as many spans as those have room for."""
    left = walks % MULTIPROCESSORS
    room = MULTIPROCESSORS // left if left else 1
    return Spans.of(walks, left, max(LEAST, -(-places // room)), places)


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
