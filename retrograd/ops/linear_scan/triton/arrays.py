"""Arrays with their strides, and numbers, as the kernels of linear_scan take them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Steps(NamedTuple):
    """An array (batch, steps, channels)."""

    pointer: Any
    batch: Any
    step: Any
    channel: Any


class States(NamedTuple):
    """States (sequences, channels)."""

    pointer: Any
    sequence: Any
    channel: Any


class Counts(NamedTuple):
    """Steps of a row, sequences, and blocks of channels."""

    steps: int
    sequences: int
    blocks: int


class Real(NamedTuple):
    """A real number, in every lane."""

    re: Any


class Complex(NamedTuple):
    """A complex number, in every lane."""

    re: Any
    im: Any


class Runs(NamedTuple):
    """The runs of a program: the tile of a sequence in row `batch` that it works on, for a block of channels.

    Tile i of the sequence has slot origin + i * pitch, see `scan.tile_of_program`; the sequence is `length` steps from
    `start`. Each lane has a channel, and the first step of its run; steps are counted from where the recurrence begins.
    """

    sequence: Any
    batch: Any
    tile: Any
    origin: Any
    pitch: Any
    start: Any
    length: Any
    block: Any
    lane: Any
    channel: Any
    first: Any


class TileSizes(NamedTuple):
    """A `plan.Tile` in a kernel, where a tuple has its fields alone: rows are 2^levels, time is steps * rows."""

    steps: int
    levels: int
    channels: int
    rows: int
    time: int
