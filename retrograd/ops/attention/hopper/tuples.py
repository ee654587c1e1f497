"""What belongs together, as the launches pass it to the kernels."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """How many keys before and after its own position a query sees; None is no limit."""

    before: int | None
    after: int | None


class Factors(NamedTuple):
    """What scores are multiplied by.

    Attributes:
        inside: of products in the tanh of a softcap; None without one.
        cap: of that tanh; with a bias, of products without one, too.
        exponent: of scores, in exponents of 2.
    """

    inside: float | None
    cap: float | None
    exponent: float


class BiasSizes(NamedTuple):
    """Sizes for `copy_bias`.

    Attributes:
        heads: of the bias, and `queries` and `keys`, 1 where all share it.
        pitch: distance of the rows of the copy.
    """

    heads: int
    queries: int
    keys: int
    pitch: int


class QuerySizes(NamedTuple):
    """Sizes of a call whose tiles are of queries.

    Attributes:
        queries: of a row, and `keys`.
        heads: of queries.
        share: heads of a group.
        tiles: of a head.
        rows: heads of all rows of the batch.
        section: heads that are computed side by side.
        drawn: 1 where programs draw their tiles, 0 where they take them by rounds.
    """

    queries: int
    keys: int
    heads: int
    share: int
    tiles: int
    rows: int
    section: int
    drawn: int


class RowSizes(NamedTuple):
    """Sizes for the kernels of `delta`.

    Attributes:
        queries: of a row, and `keys`.
        heads: of queries.
        sequences: that are packed.
        pitch: distance of the rows of base and delta.
        distance: of the copies of base and delta.
    """

    queries: int
    keys: int
    heads: int
    sequences: int
    pitch: int
    distance: int


class ListSizes(NamedTuple):
    """Sizes for `list_tiles`.

    Attributes:
        steps: of a row, of the queries or keys whose tiles are listed; where there are ids, of all rows.
        others: steps of the others of both.
        sequences: that are packed.
        tiles: that are listed.
    """

    steps: int
    others: int
    sequences: int
    tiles: int


class ForwardOptions(NamedTuple):
    """What `forward` is compiled for.

    Attributes:
        size: columns of a head of queries and keys that products sum over.
        panels: of columns, in which q and k are copied.
        queries: of a group of warps.
        keys: of a block.
        stages: blocks of k, and of v, in shared memory.
        groups: of warps that attend.
        queued: tiles whose q is in shared memory.
        registers: of a thread that attends.
        beside: whether values are added beside the exponentials, and not before them.
        by_warps: whether warps release blocks one by one, and not groups.
        reads_bias: whether threads read the bias themselves: TMA cannot where a sequence may begin at any key.
    """

    window: Window
    factors: Factors
    size: int
    panels: int
    queries: int
    keys: int
    stages: int
    groups: int
    queued: int
    registers: int
    beside: bool
    by_warps: bool
    reads_bias: bool


class KeySizes(NamedTuple):
    """Sizes of a call whose tiles are of keys.

    Attributes:
        queries: of a row, and `keys`.
        heads: of queries.
        tiles: of keys, of a group of heads.
        tiles_q: of queries, of a head.
        rows: groups of all rows of the batch.
        section: groups that are computed side by side.
    """

    queries: int
    keys: int
    heads: int
    tiles: int
    tiles_q: int
    rows: int
    section: int


class BackwardOptions(NamedTuple):
    """What `backward_fused` is compiled for.

    Attributes:
        scale: of products.
        share: heads of a group.
        size: columns of a head of queries and keys that products sum over, and `value_size`, of values.
        keys: of a tile.
        queries: of a tile.
        q_stages: tiles of q in shared memory, and `dout_stages`.
        listed: whether tiles are listed.
        registers: of a thread that computes products.
    """

    window: Window
    factors: Factors
    scale: float
    share: int
    size: int
    value_size: int
    keys: int
    queries: int
    q_stages: int
    dout_stages: int
    listed: bool
    registers: int


class DqOptions(NamedTuple):
    """What `backward_dq` is compiled for.

    Attributes:
        scale: of products.
        size: columns of a head of queries and keys, in units of 64, and `value_size`, of values.
        queries: of a group of warps.
        keys: of a block.
        k_stages: blocks of k in shared memory, and `v_stages`.
        registers: of a thread that computes products.
    """

    window: Window
    factors: Factors
    scale: float
    size: int
    value_size: int
    queries: int
    keys: int
    k_stages: int
    v_stages: int
    registers: int


class DkDvOptions(NamedTuple):
    """What `backward_both` and `backward_apart` are compiled for.

    Attributes:
        scale: of products.
        size: columns of a head of queries and keys, in units of 64, and `value_size`, of values.
        share: heads of a group.
        keys: of a tile.
        queries: of a tile.
        q_stages: tiles of q in shared memory, and `dout_stages`.
        listed: whether tiles are listed.
        registers: of a thread that computes products.
    """

    window: Window
    factors: Factors
    scale: float
    size: int
    value_size: int
    share: int
    keys: int
    queries: int
    q_stages: int
    dout_stages: int
    listed: bool
    registers: int
