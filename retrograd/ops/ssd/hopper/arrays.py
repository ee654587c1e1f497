"""What the kernels for Hopper pass to their warp groups, and are compiled for. Symbols: ../README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Spans(NamedTuple):
    """The first `whole` walks take a program each; the others are cut into `spans` spans of `span` blocks."""

    whole: Any
    span: Any
    spans: Any


class Walks(NamedTuple):
    """All walks of a pass: sizes of the call, and how walks are cut."""

    T: Any
    sequences: Any
    H: Any
    G: Any
    whole: Any
    span: Any
    spans: Any
    cu_seqlens: Any


class Walk(NamedTuple):
    """A walk: its first slice in the group, and how many slices the group has; then where its sequence lies."""

    slice: Any
    slices: Any
    group: Any
    number: Any
    row: Any
    first: Any
    length: Any
    slot: Any


class Span(NamedTuple):
    """What a program takes: a walk; its number among those that are cut, negative if it is not; and a part of it."""

    walk: Any
    cut: Any
    part: Any


class Registers(NamedTuple):
    """Registers per thread, of each kind of warp."""

    CARRY: int
    WEIGH: int
    FETCH: int


class WalkOptions(NamedTuple):
    """STAGES: of k, q and vectors. KEPT: slots between two kept states. AT_BORDER: `Spec.state_at_border`."""

    P: int
    N: int
    STAGES: int
    BACK: bool
    KEPT: int
    AT_BORDER: bool


class WalkArrays(NamedTuple):
    """Descriptors of what a walk reads."""

    u: Any
    k: Any
    q: Any
    vectors: Any
    entering: Any
    middle: Any


class WalkPointers(NamedTuple):
    """What `carry` reads and writes without descriptors, or describes itself."""

    vectors: Any
    D: Any
    start: Any
    ahead: Any
    out: Any
    states: Any
    both: Any
    last: Any


class Blocks(NamedTuple):
    """A ring of k, q and vectors of blocks of steps."""

    k: Any
    q: Any
    vectors: Any
    full: Any
    empty: Any


class WalkRings(NamedTuple):
    """Shared memory of a walk.

    blocks, u: from `fetch`. scores: from `weigh`. states: those that leave; before, the entering ones, which are there
    as soon as u is. added: what the second half of the states adds to the results.
    """

    blocks: Any
    u: Any
    scores: Any
    states: Any
    added: Any


class AheadOptions(NamedTuple):
    """COLUMNS: states of a program."""

    P: int
    N: int
    COLUMNS: int
    STAGES: int
    BACK: bool


class AheadArrays(NamedTuple):
    """Descriptors of what `ahead` reads."""

    u: Any
    k: Any
    vectors: Any


class AheadRing(NamedTuple):
    """A ring of u, k and vectors of two blocks of steps."""

    u: Any
    k: Any
    vectors: Any
    full: Any
    empty: Any


class MiddleSizes(NamedTuple):
    """Q: steps of a block. CHANNELS, BLOCK_N: channels and states of one product. STAGES: of the pipeline."""

    P: int
    N: int
    Q: int
    CHANNELS: int
    BLOCK_N: int
    STAGES: int


class PairCall(NamedTuple):
    """Sizes of a call, and the blocks of heads that a program takes: on these no binary depends."""

    T: Any
    sequences: Any
    H: Any
    each: Any


class PairWork(NamedTuple):
    """The same, with the number of groups and `cu_seqlens`."""

    T: Any
    sequences: Any
    H: Any
    G: Any
    each: Any
    cu_seqlens: Any


class PairOptions(NamedTuple):
    """HEADS: of a block of heads, over which dB and dC are summed."""

    P: int
    N: int
    HEADS: int
    STAGES: int
    FOR_B: bool


class PairArrays(NamedTuple):
    """Descriptors of what `pairs` reads."""

    rows: Any
    columns: Any
    left: Any
    right: Any
    states: Any
    vectors: Any


class ByTarget(NamedTuple):
    """Sums of slices, by the target."""

    targets: Any
    own: Any
    dots: Any


class BySource(NamedTuple):
    """Sums of slices, by the source."""

    sources: Any
    after: Any


class Results(NamedTuple):
    """What `pairs` writes; `at`: where the sums of the slot's first step are."""

    partial: Any
    sums: Any
    at: Any


class Slices(NamedTuple):
    """A ring of slices: rows and columns, states, vectors."""

    rows: Any
    columns: Any
    states: Any
    vectors: Any
    full: Any
    empty: Any


class Shared(NamedTuple):
    """What all slices share: `left` and `right`, full when both have come, and their products."""

    left: Any
    right: Any
    scores: Any
    full: Any
