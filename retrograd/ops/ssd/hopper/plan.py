"""How work is divided among programs, so that few multiprocessors are idle at the end.

A walk is a pass over the steps of a sequence. Walks may be cut into spans of time. `ahead` computes the state that
enters a span by a walk of the states alone, with the same bits as `walk`. Blocks of heads have separate sums, and
several may share a program. So these formulas may depend on anything: they affect the time, never the bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass, slot_count

from ..op import Spec
from . import arrays, blocks

SLOT = blocks.SLOT.value
CHANNELS = blocks.CHANNELS.value
STEPS = 64  # of a block, Q; a slot has two
MULTIPROCESSORS = 132  # of an H200; each runs one program at a time
LEAST = 2  # slots of a span
# Of a program of `middle`: states, and slices at most.
MIDDLE_STATES, MIDDLE_SLICES = 128, 8
MIDDLE_PROGRAMS = 6  # programs of `middle` for each multiprocessor, at least
PAIR_BEGINNING = 4  # start and end of a program of `pairs` take as long as this many slices
# Heads of a block of heads, over which dB and dC are summed at once, at most; by `halves`.
SUMMED_HEADS = {1: 40, 2: 64}
LEAST_BLOCKS = 2  # blocks of heads for each slot, if there are enough heads: calls with few heads often have few steps


@dataclass(frozen=True, slots=True)
class Spans:
    """How a pass cuts its walks.

    Attributes:
        whole: the number of walks that are not cut; their programs are the first.
        cut: the number of walks that are cut.
        blocks: blocks of steps of a span.
        count: spans of a cut walk of the longest possible sequence; 1 if no walk is cut.
        slots: slots of the longest possible sequence.
    """

    whole: int
    cut: int
    blocks: int
    count: int
    slots: int

    @classmethod
    def of(cls, walks: int, cut: int, length: int, slots: int) -> Spans:
        """`cut` of the walks cut into spans of `length` slots, where the longest sequence has `slots` slots."""
        count = max(1, -(-slots // length))
        cut = cut if count > 1 else 0
        return cls(walks - cut, cut, 2 * length, count if cut else 1, slots)

    def recut(self, share: float, length: int) -> Spans:
        """This share of the walks cut into spans of `length` slots."""
        walks = self.whole + self.cut
        return Spans.of(walks, round(share * walks), length, self.slots)

    @property
    def programs(self) -> int:
        """The number of programs."""
        return self.whole + self.cut * self.count

    @property
    def scalars(self) -> arrays.Spans:
        """The run-time numbers that the kernels receive."""
        return arrays.Spans(self.whole, self.blocks, self.count)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the work of a pass is divided among programs.

    Attributes:
        spans: the spans of its walks.
        columns: states of a program of `ahead`, at most.
        together: blocks of heads that a program of `pairs` computes one after the other, at most.
        sharing: heads of a group that a program of `middle` computes, at most.
    """

    spans: Spans
    columns: int
    together: int
    sharing: int


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    spans = cut(walks(spec), max(1, -(-spec.time // SLOT)))
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
    """Slices of a head or two heads in one walk."""
    return int(blocks.slices_walked(spec.N))


def halves(spec: Spec) -> int:
    """Programs or warpgroups that divide the states of a slice among them."""
    return int(blocks.halves(spec.N))


def walks(spec: Spec) -> int:
    """Walks of a pass, over all sequences."""
    return spec.sequences * spec.groups * -(-(spec.heads // spec.groups * slices(spec)) // walked(spec))


def heads(spec: Spec) -> int:
    """Heads of a block, over which dB and dC are summed: those of a group, in blocks of about the same size."""
    each = spec.heads // spec.groups
    fewest = min(each, -(-LEAST_BLOCKS // (spec.groups * halves(spec))))
    return -(-each // max(fewest, -(-each // SUMMED_HEADS[halves(spec)])))


def head_blocks(spec: Spec) -> int:
    """Blocks of heads of a group."""
    return -(-(spec.heads // spec.groups) // heads(spec))


def kept_places(spec: Spec) -> int:
    """Slots between two saved states."""
    return spec.chunk // SLOT


def programs_of_pairs(spec: Spec) -> int:
    """Programs of `pairs`, if each computes all blocks of heads of a group."""
    return spec.batch * slot_count(spec, SLOT) * halves(spec) * spec.groups


def programs_of_middle(spec: Spec) -> int:
    """Programs of `middle`, if each computes all heads of a group."""
    return spec.batch * spec.chunks * (spec.N // MIDDLE_STATES) * spec.groups


def cut(walks: int, slots: int) -> Spans:
    """The spans: walks beyond full rounds of all multiprocessors are cut into as many spans as fit on these."""
    left = walks % MULTIPROCESSORS
    room = MULTIPROCESSORS // left if left else 1
    return Spans.of(walks, left, max(LEAST, -(-slots // room)), slots)


def columns(programs: int, N: int) -> int:
    """States of a program of `ahead`: the fewest for which each program has a multiprocessor.

    With fewer states a block takes less time, but two programs on one multiprocessor slow each other down.

    Args:
        programs: programs if each computes all N states.
        N: the states of a channel.
    """
    return next((few for few in (32, 64) if programs * (N // few) <= MULTIPROCESSORS), min(N, 128))


def together(count: int, programs: int, slices: int) -> int:
    """How many blocks of heads a program of `pairs` computes one after the other, for the shortest time in all.

    Args:
        count: blocks of heads of a group.
        programs: programs if each computes all of them.
        slices: slices of a block of heads.
    """

    def time(each: int) -> int:
        rounds = -(-programs * -(-count // each) // MULTIPROCESSORS)
        return rounds * (each * slices + PAIR_BEGINNING)

    return min(range(1, count + 1), key=time)


def sharing(count: int, programs: int, most: int) -> int:
    """How many heads of a group a program of `middle` computes with one copy of B: the most that leave enough programs.

    Args:
        count: heads of a group.
        programs: programs if each computes all of them.
        most: heads of a program, at most.
    """
    return max(1, min(most, count, programs * count // (MIDDLE_PROGRAMS * MULTIPROCESSORS)))
