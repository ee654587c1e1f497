"""What the forward and the backward kernel share: where a program's arrays lie, and a step's loads."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import softplus

from .arrays import Block, Sequence


@triton.jit
def sequence_of(number, rows, cu_seqlens_ptr, CHUNK: tl.constexpr):
    """The sequence of this number; a packed one is clamped to the steps that exist."""
    if cu_seqlens_ptr is None:
        slot = number.to(tl.int64) * tl.cdiv(rows.time, CHUNK)
        return Sequence(number, number.to(tl.int64), tl.zeros_like(number), rows.time, slot)
    else:
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + number), 0), rows.time)
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + number + 1), start), rows.time)
        row = tl.zeros_like(number).to(tl.int64)
        return Sequence(number, row, start, stop - start, (start // CHUNK + number).to(tl.int64))


@triton.jit
def block_of(number, channels, SIZES: tl.constexpr):
    """The block of channels of this number, which lies within a unit of channels."""
    start = (number % channels.blocks_a_unit) * SIZES.channels
    first = number // channels.blocks_a_unit * channels.unit
    in_unit = start + tl.arange(0, SIZES.channels)
    d = first + in_unit
    in_d = in_unit < channels.unit
    n = tl.arange(0, SIZES.states)
    in_n = n < SIZES.N
    return Block(first, d, n, in_d, in_n, in_n[None, :] & in_d[:, None], d.to(tl.int64))


@triton.jit
def first_step(array, sequence, row_stride):
    """The pointer to the first step of a sequence in x, dt, z or dy; None for an absent array."""
    if array.pointer is None:
        return
    else:
        return array.pointer + (sequence.row * row_stride + sequence.first.to(tl.int64) * array.time)


@triton.jit
def first_matrix(array, sequence, row_stride, first, channels):
    """The pointer to the first step of a sequence in B or C, for channels from `first` on, of which so many share it.

    None for an absent array.
    """
    if array.pointer is None:
        return
    else:
        return array.pointer + (
            sequence.row * row_stride
            + sequence.first.to(tl.int64) * array.time
            + (first // channels).to(tl.int64) * array.group
        )


@triton.jit
def load_steps(array, t, block, mask):
    """A step's values for each channel."""
    return tl.load(array.pointer + t.to(tl.int64) * array.time + block.wide_d * array.channel, mask=mask, other=0.0)


@triton.jit
def load_parameter(array, block):
    """A parameter (channels,) as fp32, zeros where there is none."""
    if array.pointer is None:
        return tl.zeros_like(block.d).to(tl.float32)
    else:
        return tl.load(array.pointer + block.d.to(tl.int64) * array.channel, mask=block.in_d, other=0.0)


@triton.jit
def load_tile(ptr, strides, d, n, mask):
    """A tile (channels, states) of an array with these strides, as fp32."""
    offsets = n.to(tl.int64)[None, :] * strides.state + d.to(tl.int64)[:, None] * strides.channel
    return tl.load(ptr + offsets, mask=mask, other=0.0)


@triton.jit
def store_tile(ptr, strides, d, n, value, mask):
    """Store a tile (channels, states) to an array with these strides."""
    offsets = n.to(tl.int64)[None, :] * strides.state + d.to(tl.int64)[:, None] * strides.channel
    tl.store(ptr + offsets, value, mask=mask)


@triton.jit
def load_constant(array, block):
    """The tile of B or C that is constant in time; None for one with a time axis."""
    if array.pointer is None:
        return
    else:
        return load_tile(array.pointer, array, block.d, block.n, block.in_tile)


@triton.jit
def matrix_at(matrix, tile, t, n, mask):
    """B or C at a step, (1, states), or `tile` where it is constant in time."""
    if tile is None:
        offsets = t.to(tl.int64) * matrix.time + n * matrix.state
        return tl.load(matrix.pointer + offsets, mask=mask, other=0.0).to(tl.float32)[None, :]
    else:
        return tile


@triton.jit
def zeros(SIZES: tl.constexpr):
    """Zeros for the states of a program."""
    CHANNELS: tl.constexpr = SIZES.channels
    STATES: tl.constexpr = SIZES.states
    return tl.zeros([CHANNELS, STATES], tl.float32)


@triton.jit
def load_states(array, sequence, block, SIZES: tl.constexpr):
    """A sequence's states, zeros where there are none."""
    if array.pointer is None:
        return zeros(SIZES)
    else:
        start = array.pointer + sequence.number.to(tl.int64) * array.sequence
        return load_tile(start, array, block.d, block.n, block.in_tile)


@triton.jit
def store_states(ptr, start, strides, block, value):
    """The states that begin at element `start` of an array with these strides, where there is one."""
    if ptr is not None:
        store_tile(ptr + start, strides, block.d, block.n, value, block.in_tile)


@triton.jit
def step_size(raw, mask, DT_SOFTPLUS: tl.constexpr):
    """Delta; 0 where the mask is false, which leaves the states as they are."""
    delta = raw
    if DT_SOFTPLUS:
        delta = softplus(raw)
    return tl.where(mask, delta, 0.0)


@triton.jit
def fill_outside(ptr, sequence, rows, columns, first, at, mask):
    """Zeros before the first and after the last packed sequence, where its bounds leave steps to no sequence.

    In an array of so many columns a step, those that are `at` after the first.
    """
    if ptr is not None:
        zero = tl.zeros_like(at).to(ptr.dtype.element_ty)
        for t in range(tl.where(sequence.number == 0, sequence.first, 0)):
            tl.store(ptr + tl.cast(t, tl.int64) * columns + first + at, zero, mask=mask)
        for t in range(
            tl.where(sequence.number == rows.sequences - 1, sequence.first + sequence.length, rows.time), rows.time
        ):
            tl.store(ptr + tl.cast(t, tl.int64) * columns + first + at, zero, mask=mask)
