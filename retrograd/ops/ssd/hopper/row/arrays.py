"""Arrays and numbers that belong together, as the kernels of a row take them. Symbols: ../../README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Row(NamedTuple):
    """An array (batch, heads or groups, columns) of dense columns, or one without columns."""

    pointer: Any
    batch: Any
    head: Any


class Sizes(NamedTuple):
    """Channels of a head, states, steps of a block; STATES: of a product, of which N has one or two."""

    P: int
    N: int
    Q: int
    STATES: int
