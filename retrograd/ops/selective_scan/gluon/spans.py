"""How many programs walk a sequence side by side: spans of time.

A span begins at a state that is kept, and walks as the sequence would walk through it, so its bits are the same. What
enters the spans is found before, by one walk of the states alone (walk.py). So these formulas may look at anything:
they decide the time, never the bits.
"""

from __future__ import annotations

from ..spec import Spec

# Programs that an H200 runs at once. Other GPUs are near enough.
MULTIPROCESSORS = 132
FORWARD_PROGRAMS = 4 * MULTIPROCESSORS
BACKWARD_PROGRAMS = MULTIPROCESSORS
# Fewer forward programs than this leave the scan bound by its latency.
FEW_FORWARD_PROGRAMS = 3 * MULTIPROCESSORS // 2
PIECE = 128  # steps whose dA, dD and ddt_bias leave as one partial sum; the longest chunk, a multiple of the others
MOST_WAVES = 8
# In steps of a backward program: what it takes to begin and to end, and a step of the walk ahead, at least and for
# as many channels as fill the GPU.
BEGIN = 24
WALK = 0.05
WALK_FULL = 0.2


def count(spec: Spec, span: int) -> int:
    """Spans of a sequence; of the longest there may be, where sequences are packed."""
    return max(1, -(-spec.time // (span * spec.chunk)))


def forward_span(spec: Spec, programs: int) -> int:
    """Chunks of a span of the forward pass, of which `programs` would walk whole sequences."""
    chunks = -(-spec.time // spec.chunk)
    if not programs or programs >= FEW_FORWARD_PROGRAMS:
        return max(1, chunks)
    return max(PIECE // spec.chunk, -(-chunks * programs // FORWARD_PROGRAMS))


def backward_span(spec: Spec, programs: int) -> int:
    """Chunks of a span of the backward pass: those that take the least time, in whole pieces."""
    pieces = max(1, -(-spec.time // PIECE))
    if not programs:
        return pieces * (PIECE // spec.chunk)

    def time(span: int) -> float:
        spans = -(-pieces // span)
        waves = -(-programs * spans // BACKWARD_PROGRAMS)
        ahead = max(WALK, WALK_FULL * programs / BACKWARD_PROGRAMS) if spans > 1 else 0
        return waves * (span * PIECE + BEGIN) + ahead * pieces * PIECE

    wanted = (waves * BACKWARD_PROGRAMS // programs for waves in range(1, MOST_WAVES + 1))
    each = {-(-pieces // max(1, spans)) for spans in wanted}
    return min(sorted(each | {pieces}, reverse=True), key=time) * (PIECE // spec.chunk)
