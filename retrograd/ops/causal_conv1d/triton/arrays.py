"""Arrays with their strides, and the sizes of tiles, as the kernels of causal_conv1d take them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Rows(NamedTuple):
    """An array (rows, steps, channels): x, or with sequences and their entries as rows and steps, states."""

    pointer: Any
    row: Any
    step: Any
    channel: Any


class Weight(NamedTuple):
    """The weight (channels, taps)."""

    pointer: Any
    channel: Any
    tap: Any


class Line(NamedTuple):
    """An array of one axis; in a kernel also pointers to step 0 of a tile's channels, with the stride of the steps."""

    pointer: Any
    step: Any


class Filters(NamedTuple):
    """The filters of a tile's channels, or sums of their gradients: a tile for each tap, and one for the bias; fp32."""

    taps: Any
    bias: Any


class Segment(NamedTuple):
    """Steps begin to end of the sequence first..last; not `live` outside of all sequences."""

    first: Any
    last: Any
    begin: Any
    end: Any
    live: Any


class Lengths(NamedTuple):
    """Steps of a row, sequences, and the steps that a lane walks over."""

    steps: int
    sequences: int
    walk: int


class VectorLengths(NamedTuple):
    """Steps of a row, and the tiles that a program takes."""

    steps: int
    tiles: int


class Sizes(NamedTuple):
    """Channels of x, and taps of a filter."""

    channels: int
    taps: int


class Activation(NamedTuple):
    """Whether y is activated, and whether by approximate instructions, which only NVIDIA has."""

    silu: bool
    fast: bool


class LaneTile(NamedTuple):
    """A tile of lanes that walk over time, see `plan.Walk`."""

    lanes: int
    channels: int
    unroll: int
    stages: int


class VectorTile(NamedTuple):
    """A tile of vectors of time, see `plan.Vectors`; `even`: a row has a whole number of vectors."""

    channels: int
    blocks: int
    vector: int
    even: bool
