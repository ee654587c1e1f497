"""Spans of time: how many programs share a sequence.

A span begins at a saved state, and a program walks it as it would walk that part of the whole sequence, so its bits are
the same. A walk of the states alone (walk.py) computes the states that enter the spans. These formulas may therefore
depend on anything: they affect the time, never the bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..op import Spec

PIECE = 128  # steps per partial sum of dA, dD and ddt_bias; the longest chunk, a multiple of the others
# Programs that an H200 runs at once. Other GPUs are near enough.
MULTIPROCESSORS = 132
FORWARD_PROGRAMS = 4 * MULTIPROCESSORS  # one alone on a multiprocessor is bound by its latency
MOST_WAVES = 8  # backward, of programs that have a multiprocessor to themselves
# Times in steps of a backward program: the start and end of a program; a step of the walk ahead, at least and for as
# many channels as fill the GPU.
BEGIN = 24
WALK = 0.07
WALK_FULL = 0.16


@dataclass(frozen=True, slots=True)
class Spans:
    """How a pass cuts its sequences into spans.

    Attributes:
        programs: programs if every sequence were one span.
        time: steps of a sequence; of packed sequences, the longest possible.
        chunk: steps between saved states.
        pieces: pieces of a span.
    """

    programs: int
    time: int
    chunk: int
    pieces: int

    @property
    def chunks(self) -> int:
        """Chunks of a span."""
        return self.pieces * (PIECE // self.chunk)

    @property
    def count(self) -> int:
        """Spans of a sequence."""
        return max(1, -(-self.time // (self.pieces * PIECE)))

    def cut(self, pieces: int) -> Spans:
        """The same with spans of `pieces` pieces."""
        return replace(self, pieces=pieces)


def spans(spec: Spec, channels: int, pieces: int) -> Spans:
    """Spans of `pieces` pieces, for programs of `channels` channels."""
    return Spans(spec.sequences * (spec.channels // channels), spec.time, spec.chunk, pieces)


def forward(spec: Spec, channels: int) -> Spans:
    """The forward pass: as many programs as a GPU runs at once, if whole sequences would leave most of it idle."""
    whole = _pieces(spec)
    programs = max(1, spec.sequences * (spec.channels // channels))
    several = programs <= MULTIPROCESSORS
    return spans(spec, channels, max(1, whole // (FORWARD_PROGRAMS // programs)) if several else whole)


def backward(spec: Spec, channels: int) -> Spans:
    """The backward pass: the spans that take the least time, the walk ahead of them included."""
    whole = _pieces(spec)
    programs = max(1, spec.sequences * (spec.channels // channels))

    def time(pieces: int) -> float:
        count = -(-whole // pieces)
        last = whole - (count - 1) * pieces
        walk = max(WALK, WALK_FULL * programs / MULTIPROCESSORS) * (whole - pieces) * PIECE
        return walk + in_turn(programs * (count - 1), pieces * PIECE + BEGIN, programs, last * PIECE + BEGIN)

    counts = [max(1, waves * MULTIPROCESSORS // programs) for waves in range(1, MOST_WAVES + 1)]
    candidates = {whole, *(-(-whole // count) for count in counts), *(max(1, whole // count) for count in counts)}
    return spans(spec, channels, min(sorted(candidates, reverse=True), key=time))


def in_turn(many: int, long: int, more: int, short: int) -> int:
    """The time of `many` programs of time `long`, then `more` of time `short`, one per multiprocessor at a time."""
    waves, rest = divmod(many, MULTIPROCESSORS)
    free = MULTIPROCESSORS - rest
    beside = free * (long // short)  # short ones that end before the last long ones do
    if rest and more <= beside:
        return (waves + 1) * long
    if rest:
        return (waves + 1) * long + -(-(more - beside) // MULTIPROCESSORS) * short
    return waves * long + -(-more // MULTIPROCESSORS) * short


def _pieces(spec: Spec) -> int:
    """Pieces of the longest possible sequence."""
    return max(1, -(-spec.time // PIECE))
