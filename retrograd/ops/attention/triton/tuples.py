"""What belongs together, as the kernels of attention and their functions take it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Sizes of a call.

    Attributes:
        queries: of a row.
        keys: of a row.
        heads: of q.
        share: heads that share a head of k and v.
        sequences: packed ones, or rows.
    """

    queries: Any
    keys: Any
    heads: Any
    share: Any
    sequences: Any


class Scores(NamedTuple):
    """How products become scores, and these probabilities; known when a kernel is compiled.

    Attributes:
        before: how many keys before its own step a query sees; None is no limit.
        after: how many after it.
        factor: of products; None where they are the scores.
        unit: of scores, log2(e), or 1 where exponentials are exact.
        softcap: the bound of scores, or None.
        exponent: the factor of scores in exponents.
        dropped: pairs are dropped whose number, of 2^16, is below it.
        bias_described: whether the bias is a tensor descriptor; None without a bias.
        scale: the factor of dq and dk.
    """

    before: int | None
    after: int | None
    factor: float | None
    unit: float
    softcap: float | None
    exponent: float
    dropped: int
    bias_described: bool | None
    scale: float


class Tiles(NamedTuple):
    """The tiles of a program; known when a kernel is compiled.

    Attributes:
        queries: of a tile.
        keys: of a tile.
        heads: whose queries a program that owns keys walks over.
        D: the size of a head of q and k.
        V: the size of a head of v.
        BLOCK_D: columns of a tile of q or k.
        BLOCK_V: columns of a tile of v or dout.
        described: whether the tiles that a program walks over come through tensor descriptors.
    """

    queries: int
    keys: int
    heads: int
    D: int
    V: int
    BLOCK_D: int
    BLOCK_V: int
    described: bool


class Shared(NamedTuple):
    """Whether queries, and keys, share what is added to their scores: an axis of the bias has size 1."""

    queries: bool
    keys: bool


class Summed(NamedTuple):
    """The rows and heads over which the gradient of a bias is summed."""

    rows: Any
    heads: Any


class Inputs(NamedTuple):
    """The arrays that give scores, probabilities and products with values."""

    q: Any
    k: Any
    v: Any
    bias: Any
    slopes: Any
    seed_ptr: Any


class Incoming(NamedTuple):
    """What a backward pass reads of each query: `base` and `delta` of `backward.deltas`, and dout."""

    base: Any
    dout: Any
    delta: Any


class Sequence(NamedTuple):
    """A packed sequence, a run of equal ids, or a row.

    Attributes:
        batch: its row.
        number: its number among packed sequences or runs; the row's where there are none.
        first_q: its first query in the row.
        queries: their number.
        first_k: its first key in the row.
        keys: their number.
        origin: the row's first step among those of all rows, where ids tell sequences apart; 0 elsewhere.
    """

    batch: Any
    number: Any
    first_q: Any
    queries: Any
    first_k: Any
    keys: Any
    origin: Any


class Work(NamedTuple):
    """The tile of queries, or of keys, that a program owns.

    Attributes:
        sequence: whose steps they are.
        head: of queries, or of keys.
        tile: its number in the row, or among those of all runs.
        at: its first step in the sequence.
    """

    sequence: Any
    head: Any
    tile: Any
    at: Any


class Queries(NamedTuple):
    """A loaded tile of queries, with what a backward pass reads of them."""

    q: Any
    dout: Any
    base: Any
    delta: Any


class Turns(NamedTuple):
    """Where programs add to dq in turn: see `fused.fused_backward`.

    Attributes:
        sum_ptr: the sums.
        turns_ptr: the counters.
        first_tile: the number, in a row, of the first tile of the sequence's queries.
        tiles: of a row.
    """

    sum_ptr: Any
    turns_ptr: Any
    first_tile: Any
    tiles: Any
