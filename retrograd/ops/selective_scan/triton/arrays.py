"""Arrays with their strides, and numbers that belong together, as the kernels take them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Steps(NamedTuple):
    """x, dt, z or dy, (batch, time, channels); the stride of the batch is in `Rows`."""

    pointer: Any
    time: Any
    channel: Any


class Matrix(NamedTuple):
    """B or C with a time axis, (batch, time, groups, states); the stride of the batch is in `Rows`."""

    pointer: Any
    time: Any
    group: Any
    state: Any


class Parameter(NamedTuple):
    """An array (channels,)."""

    pointer: Any
    channel: Any


class Parameters(NamedTuple):
    """The parameters (channels,)."""

    D: Any
    dt_bias: Any


class Tiles(NamedTuple):
    """An array whose last axes are (channels, states)."""

    pointer: Any
    channel: Any
    state: Any


class States(NamedTuple):
    """An array (sequences, channels, states)."""

    pointer: Any
    sequence: Any
    channel: Any
    state: Any


class Rows(NamedTuple):
    """Steps of a row, the number of sequences, and each array's stride of the batch.

    Kernels are not specialised for them, so that a row is computed by the same binary in every batch.
    """

    time: int
    sequences: int
    x: int
    dt: int
    z: int
    dy: int
    B: int
    C: int


class Channels(NamedTuple):
    """All channels, those that share B and C, the programs that share these; the channels that share B, and C."""

    total: int
    unit: int
    blocks_a_unit: int
    of_B: int
    of_C: int


class Sizes(NamedTuple):
    """What a kernel is compiled for: states of a channel; the tile (channels, states) of a program, powers of two.

    Then the steps between saved states, and those of an unrolled loop.
    """

    N: int
    channels: int
    states: int
    chunk: int
    group: int


class Sequence(NamedTuple):
    """The sequence of a program: its number, row, first step in it, length, and its first slot for saved states."""

    number: Any
    row: Any
    first: Any
    length: Any
    slot: Any


class Block(NamedTuple):
    """The channels of a program, and which exist: the first that shares B and C with them, the channels, the states.

    `wide_d` has the channels in 64 bits.
    """

    first: Any
    d: Any
    n: Any
    in_d: Any
    in_n: Any
    in_tile: Any
    wide_d: Any


class Given(NamedTuple):
    """What the backward kernel reads, from the first step of the program's sequence on.

    B and C are in `tile_B` and `tile_C` where they are constant in time; a2 is A log2(e).
    """

    dy: Any
    x: Any
    dt: Any
    z: Any
    B: Any
    C: Any
    tile_B: Any
    tile_C: Any
    a2: Any
    skip: Any
    bias: Any


class Outputs(NamedTuple):
    """What the backward kernel writes, and others read: gradients, and partial sums of them."""

    dx_ptr: Any
    ddt_ptr: Any
    dz_ptr: Any
    dinitial_state_ptr: Any
    dBC_partial_ptr: Any
    dA_partial_ptr: Any
    dB_partial_ptr: Any
    dC_partial_ptr: Any
    dD_partial_ptr: Any
    ddt_bias_partial_ptr: Any


class Partial(NamedTuple):
    """Partial sums of dB and dC: so many columns a step; the program's block of channels."""

    pointer: Any
    columns: Any
    block: Any


class Gradients(NamedTuple):
    """The gradients that have a time axis: pointers, and the row in which the program's sequence starts."""

    start: Any
    x: Any
    dt: Any
    z: Any


class Group(NamedTuple):
    """A group of steps: x, the step size before softplus and after it, and the decays, of each step.

    Then the state that enters the group, and those after each of its steps.
    """

    xs: Any
    raws: Any
    deltas: Any
    decays: Any
    states: Any


class Sums(NamedTuple):
    """The gradient of the states, and sums over the steps so far; `lost` is what their rounding lost."""

    g: Any
    dA: Any
    dD: Any
    dbias: Any
    dD_lost: Any
    dbias_lost: Any
