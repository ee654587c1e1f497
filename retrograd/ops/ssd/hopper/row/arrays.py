"""Sizes that belong together, as the kernels of a row take them. Symbols: ../../README.md."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """Channels of a head, states, steps of a block; STATES: of a product, of which N has one or two."""

    P: int
    N: int
    Q: int
    STATES: int
