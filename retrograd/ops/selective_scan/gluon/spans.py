"""How many programs walk a sequence side by side: spans of time.

A span begins at a state that is kept, and walks as the sequence would walk through it, so its bits are the same. What
enters the spans is found by a walk of the states alone (walk.py). So these formulas may look at anything: they decide
the time, never the bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..spec import Spec

PIECE = 128  # steps whose dA, dD and ddt_bias leave as one partial sum; the longest chunk, a multiple of the others
# Programs that an H200 runs at once. Other GPUs are near enough.
MULTIPROCESSORS = 132
# Fewer forward programs than this leave the scan bound by its latency.
FEW_PROGRAMS = 3 * MULTIPROCESSORS // 2
FORWARD_SPANS = 16
MOST_WAVES = 8
# In steps of a backward program: what it takes to begin and to end, and a step of the walk ahead, at least and for
# as many channels as fill the GPU.
BEGIN = 24
WALK = 0.05
WALK_FULL = 0.2


@dataclass(frozen=True, slots=True)
class Spans:
    """Attributes:
    programs: what all sequences would take, walked whole.
    chunks: of a span.
    count: spans of a sequence; of the longest there may be, where sequences are packed.
    """

    programs: int
    chunks: int
    count: int

    @property
    def scalars(self) -> dict[str, int]:
        """As kernels take it."""
        return {"span": self.chunks, "spans": self.count}


def spans(spec: Spec, channels: int, pieces: int) -> Spans:
    """Spans of so many pieces, walked by programs of so many channels."""
    count = max(1, -(-spec.time // (pieces * PIECE)))
    return Spans(spec.sequences * (spec.channels // channels), pieces * (PIECE // spec.chunk), count)


def forward(spec: Spec, channels: int) -> Spans:
    """The forward pass's: enough to follow the walk closely."""
    whole = _pieces(spec)
    programs = spec.sequences * (spec.channels // channels)
    return spans(spec, channels, whole if programs >= FEW_PROGRAMS else max(1, whole // FORWARD_SPANS))


def backward(spec: Spec, channels: int) -> Spans:
    """The backward pass's: those that take the least time."""
    whole = _pieces(spec)
    programs = max(1, spec.sequences * (spec.channels // channels))

    def time(pieces: int) -> float:
        count = -(-whole // pieces)
        waves = -(-programs * count // MULTIPROCESSORS)
        ahead = max(WALK, WALK_FULL * programs / MULTIPROCESSORS) if count > 1 else 0
        return waves * (pieces * PIECE + BEGIN) + ahead * whole * PIECE

    counts = (waves * MULTIPROCESSORS // programs for waves in range(1, MOST_WAVES + 1))
    candidates = {whole, *(-(-whole // max(1, count)) for count in counts)}
    return spans(spec, channels, min(sorted(candidates, reverse=True), key=time))


def _pieces(spec: Spec) -> int:
    """Pieces of the longest sequence there may be."""
    return max(1, -(-spec.time // PIECE))
