"""Arrays with their strides, and values that belong together, as the kernels take them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Rows(NamedTuple):
    """x, dt, z or dy, (batch, time, channels), dense along the channels; strides in units of 16 bytes."""

    pointer: Any
    batch: Any
    time: Any


class Matrix(NamedTuple):
    """B or C, (batch, time, groups, states), dense along the states; strides in units of 4 elements.

    In these units the compiler knows what strides are multiples of, whatever they are.
    """

    pointer: Any
    batch: Any
    time: Any
    group: Any


class Lengths(NamedTuple):
    """Steps of a row, the number of sequences, the chunks of a span, the spans of a sequence; never specialised."""

    time: int
    sequences: int
    span: int
    spans: int


class Channels(NamedTuple):
    """All channels; those that share B, and C."""

    total: int
    of_B: int
    of_C: int


class ForwardSizes(NamedTuple):
    """States of a channel; channels of a program, states of a thread; steps between saved states; copies of a group."""

    N: int
    channels: int
    states: int
    chunk: int
    stages: int
    warps: int


class WalkChannels(NamedTuple):
    """All channels; those that share the vector."""

    total: int
    of_vector: int


class WalkSizes(NamedTuple):
    """As `ForwardSizes`, with the steps of a group."""

    N: int
    channels: int
    states: int
    chunk: int
    steps: int
    stages: int
    warps: int


class BackwardSizes(NamedTuple):
    """States of a channel, channels of a program, steps between saved states, and steps of a partial sum over time.

    Steps between states in shared memory; stages of groups beyond those of a chunk; whether terms of sums over channels
    are split in two; the warps of each kind, and registers of a thread of `make` and of `finish`.
    """

    N: int
    channels: int
    chunk: int
    piece: int
    every: int
    extra: int
    split: bool
    warps: int
    make_registers: int
    finish_registers: int


class Span(NamedTuple):
    """What a program walks: its block of channels, its sequence's number, and its span's number in that.

    The sequence's first row and its length; the span's, and the slot of the span's first chunk.
    """

    block: Any
    number: Any
    part: Any
    start: Any
    whole: Any
    row: Any
    length: Any
    slot: Any


class Steps(NamedTuple):
    """An array from a sequence's first step on: a pointer, and the stride of steps in the units of its array."""

    pointer: Any
    time: Any


class Inputs(NamedTuple):
    """The arrays with a time axis, as `Steps` in memory, or as blocks of steps in shared memory."""

    dy: Any
    x: Any
    dt: Any
    z: Any
    B: Any
    C: Any


class Group(NamedTuple):
    """8 steps of the backward pass, in fp32 where computed with: delta, x, delta x, dy silu(z), B, C, dy silu'(z)."""

    delta: Any
    x: Any
    dx: Any
    gy: Any
    B: Any
    C: Any
    gate: Any


class Scanned(NamedTuple):
    """8 steps of the forward pass in fp32: delta, delta x, B, C."""

    delta: Any
    dx: Any
    B: Any
    C: Any


class Entering(NamedTuple):
    """The states that enter each group; its second half, and its second and last quarter, where there is room.

    Arrays apart, because the compiler puts a barrier between two stores to one.
    """

    at0: Any
    at2: Any
    at4: Any
    at6: Any


class Results(NamedTuple):
    """What the adjoint of a group leaves: y, the gradients of delta x and of delta log2(e) A, in halves of the group.

    Each is a thread's sums over its states. Then sums over the channels of quads of lanes.
    """

    y: Any
    ddx: Any
    dlog: Any
    sums: Any


class Groups(NamedTuple):
    """The blocks of the ring between `make` and the other warps: steps, and the states that enter them."""

    steps: Any
    entering: Any


class StatePointers(NamedTuple):
    """Where `walk_back` reads and writes gradients of states, and sums of the gradient of A."""

    dfinal_state_ptr: Any
    leaving_ptr: Any
    dinitial_state_ptr: Any
    dA_partial_ptr: Any


class StateOffsets(NamedTuple):
    """Where a program's states begin in arrays (sequences, D, N), in `leaving`, and in dA_partial."""

    sequence: Any
    leaving: Any
    piece: Any


class Gradients(NamedTuple):
    """Pointers to what `finish` writes: gradients, and partial sums of them."""

    dx_ptr: Any
    ddt_ptr: Any
    dz_ptr: Any
    dBC_partial_ptr: Any
    dD_partial_ptr: Any
    ddt_bias_partial_ptr: Any


class Drives(NamedTuple):
    """The arrays that the walk of the states alone reads, as `Inputs`: x or dy, dt, z, and B or C."""

    drive: Any
    dt: Any
    z: Any
    vector: Any


class Driven(NamedTuple):
    """Steps of the walk of the states alone: delta, what drives the states, and the vector through which it does.

    Forward these are delta x and B; back, dy silu(z) and C.
    """

    delta: Any
    drive: Any
    vector: Any
