"""Arrays with their strides, and numbers that belong together, as the kernels of SSD take them. Symbols: README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Skip(NamedTuple):
    """D or its gradient, (heads, channels); one of (heads,) has stride 0 for channels."""

    pointer: Any
    head: Any
    channel: Any


class Lengths(NamedTuple):
    """The steps of a row, and the sequences: on these no binary depends."""

    T: Any
    sequences: Any


class Call(NamedTuple):
    """Lengths, and the limits of step sizes."""

    T: Any
    sequences: Any
    low: Any
    high: Any


class Groups(NamedTuple):
    """The numbers of heads and of groups."""

    H: Any
    G: Any


class Summands(NamedTuple):
    """How many sums `finish` adds for a head and a slot of Q steps: of slices, of parts of the states of a slice, of
    tiles of the head's state. HEADS: of a program.
    """

    Q: int
    SLICES: int
    PARTS: int
    TILES: int
    HEADS: int
    DT_SOFTPLUS: bool
