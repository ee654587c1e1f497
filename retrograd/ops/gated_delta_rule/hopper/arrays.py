"""What the kernels for Hopper pass to their warp groups, and are compiled for. Symbols: ../README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Walks(NamedTuple):
    """Sizes of a call; `cu_seqlens` of packed sequences, or None."""

    T: Any
    sequences: Any
    H: Any
    G: Any
    cu_seqlens: Any


class Walk(NamedTuple):
    """What a program walks over.

    column: the first of its channels of the values. number, row, first, length: its sequence. slot: the first of that.
    begin, count: its blocks. kept: the slot of the first state that is kept of them.
    """

    column: Any
    head: Any
    number: Any
    row: Any
    first: Any
    length: Any
    slot: Any
    begin: Any
    count: Any
    kept: Any


class WalkOptions(NamedTuple):
    """STAGES: blocks in shared memory. KEPT: blocks between kept states. AGAIN: from each kept state to the next."""

    STAGES: int
    KEPT: int
    AGAIN: bool


class WalkArrays(NamedTuple):
    """Descriptors of what a walk reads; q and scores only where it computes results."""

    q: Any
    k: Any
    v: Any
    planes: Any
    inverse: Any
    scores: Any


class WalkRing(NamedTuple):
    """A ring of blocks, in the order of `WalkArrays`."""

    q: Any
    k: Any
    v: Any
    planes: Any
    inverse: Any
    scores: Any
    full: Any
    empty: Any


class WalkPointers(NamedTuple):
    """What a walk begins from and leaves: `out` results, or of a walk AGAIN what is written."""

    start: Any
    out: Any
    states: Any
    last: Any


class Leaving(NamedTuple):
    """Shared memory through which states and rows leave."""

    states: Any
    rows: Any
