"""What belongs together, as the launches pass it to the kernels of one query. Symbols: ../../README.md."""

from __future__ import annotations

from typing import NamedTuple

from ..tuples import Factors, Window


class CacheSizes(NamedTuple):
    """Sizes of a call.

    Attributes:
        capacity: slots of a row of the caches.
        groups: heads of keys.
        share: heads of queries of a group.
        slices: programs that share the columns of values of a group.
        blocks: of keys, of a row.
    """

    capacity: int
    groups: int
    share: int
    slices: int
    blocks: int


class QueryOptions(NamedTuple):
    """What the kernels are compiled for.

    Attributes:
        size: columns of a head of queries and keys that products sum over.
        value_size: columns of a head of values.
        keys: of a block.
        stages: blocks of each array in shared memory.
        panels: q and k are copied in one piece.
        beside: values are added beside the exponentials.
        by_warps: one group releases blocks.
    """

    window: Window
    factors: Factors
    size: int
    value_size: int
    keys: int
    stages: int
    panels: int = 1
    beside: bool = True
    by_warps: bool = False
