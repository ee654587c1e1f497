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
    """STAGES: blocks in shared memory. KEPT: blocks between kept states. AGAIN: blocks of a program, or 0 for all."""

    STAGES: int
    KEPT: int
    AGAIN: int


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


class BackArrays(NamedTuple):
    """Descriptors of what the walk back reads."""

    q: Any
    k: Any
    dout: Any
    planes: Any
    inverse: Any
    scores: Any


class BackRing(NamedTuple):
    """A ring of blocks, in the order of `BackArrays`."""

    q: Any
    k: Any
    dout: Any
    planes: Any
    inverse: Any
    scores: Any
    full: Any
    empty: Any


class BackPointers(NamedTuple):
    """What the walk back begins from and leaves; `states` by a descriptor."""

    start: Any
    dv: Any
    states: Any
    last: Any


class GradOptions(NamedTuple):
    """GROUP: heads of a key head. SPAN: blocks of a program. KEPT: blocks between kept states; else stages of rings."""

    GROUP: int
    SPAN: int
    KEPT: int
    ROWS: int
    STATES: int
    QUERIES: int


class GradRegisters(NamedTuple):
    """Registers per thread, of each kind of warp but the first, which has what is left."""

    STATES: int
    FETCH: int


class GradArrays(NamedTuple):
    """Descriptors of what `grads` reads."""

    q: Any
    k: Any
    dout: Any
    dv: Any
    written: Any
    vectors: Any
    kept: Any
    between: Any
    leaving: Any


class GradPointers(NamedTuple):
    """What `grads` writes."""

    dq: Any
    dk: Any
    sums: Any
    both: Any


class GradRings(NamedTuple):
    """Shared memory of `grads`, all of it in tiles (64, 64).

    queries: q and k of a block, two tiles each. vectors: of a head. rows: of a head do, D, dv, two tiles each. states:
    for each half of the keys those that enter and the gradients of those that leave, two tiles each. pairs: of a block,
    what `with_pairs` leaves.
    """

    queries: Any
    vectors: Any
    rows: Any
    states: Any
    other_states: Any
    pairs: Any


class Span(NamedTuple):
    """A program's key head and sequence; its first slots of blocks and kept states; its first block, and how many."""

    group: Any
    number: Any
    row: Any
    first: Any
    length: Any
    slot: Any
    kept: Any
    begin: Any
    count: Any
