"""Selective scan, forward, on any GPU. Symbols and formulas: ../README.md.

A program walks one sequence for BLOCK_D channels, one step after the other. It is one warp, and its states are a tile
(BLOCK_D, BLOCK_N) in registers: lanes lie along the channels, so a sum over states is (nearly) within a thread.

Strides of what is loaded or stored as such a tile come in `*_tile_strides` and are not specialised: were the compiler
to know which of them is 1, it would lay the tile out for the memory instead.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, let_next_start, sigmoid, softplus, wait_for_previous


@triton.jit
def sequence(number, T, cu_seqlens_ptr, KEEP: tl.constexpr):
    """A sequence's row, first step, length and first place for kept states; of a packed one, clamped to what exists."""
    if cu_seqlens_ptr is None:
        return number.to(tl.int64), tl.zeros_like(number), T, number.to(tl.int64) * tl.cdiv(T, KEEP)
    else:
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + number), 0), T)
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + number + 1), start), T)
        return tl.zeros_like(number).to(tl.int64), start, stop - start, (start // KEEP + number).to(tl.int64)


@triton.jit
def channels_of(block, unit, blocks_a_unit, BLOCK_D: tl.constexpr):
    """A block's first channel, its channels, and which of them exist: a block lies within a unit of channels."""
    start = (block % blocks_a_unit) * BLOCK_D
    first = block // blocks_a_unit * unit
    d = start + tl.arange(0, BLOCK_D)
    return first, first + d, d < unit


@triton.jit
def load_per_channel(ptr, d, mask, stride):
    """A parameter (D,) as fp32, zeros where there is none."""
    if ptr is None:
        return tl.zeros_like(d).to(tl.float32)
    else:
        return tl.load(ptr + d.to(tl.int64) * stride, mask=mask, other=0.0)


@triton.jit
def load_tile(ptr, n, d, mask, strides):
    """A tile (BLOCK_D, BLOCK_N) of an array whose strides of channel and state are given, as fp32."""
    offsets = n.to(tl.int64)[None, :] * strides[1] + d.to(tl.int64)[:, None] * strides[0]
    return tl.load(ptr + offsets, mask=mask, other=0.0)


@triton.jit
def store_tile(ptr, value, n, d, mask, strides):
    """The way back."""
    offsets = n.to(tl.int64)[None, :] * strides[1] + d.to(tl.int64)[:, None] * strides[0]
    tl.store(ptr + offsets, value, mask=mask)


@triton.jit
def matrix_at(tile, ptr, t, stride, n, n_stride, mask):
    """B or C at a step, to go with tiles: the constant tile, or a column from (time, N)."""
    if tile is None:
        offsets = t.to(tl.int64) * stride + n * n_stride
        return tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)[None, :]
    else:
        return tile


@triton.jit
def step_size(raw, mask, DT_SOFTPLUS: tl.constexpr):
    """Delta; 0 where the mask is false, which leaves the states as they are."""
    delta = raw
    if DT_SOFTPLUS:
        delta = softplus(raw)
    return tl.where(mask, delta, 0.0)


@triton.jit
def fill_outside(ptr, number, sequences, start, stop, T, channels, d, mask):
    """Zeros before the first and after the last packed sequence, where its bounds leave steps to no sequence."""
    if ptr is not None:
        zero = tl.zeros_like(d).to(ptr.dtype.element_ty)
        for t in range(tl.where(number == 0, start, 0)):
            tl.store(ptr + tl.cast(t, tl.int64) * channels + d, zero, mask=mask)
        for t in range(tl.where(number == sequences - 1, stop, T), T):
            tl.store(ptr + tl.cast(t, tl.int64) * channels + d, zero, mask=mask)


@triton.jit(
    do_not_specialize=[
        "T", "sequences", "row_strides", "A_tile_strides", "B_tile_strides", "C_tile_strides", "initial_row_stride",
        "initial_tile_strides", "state_tile_strides",
    ]
)  # fmt: skip
def forward_scan(
    x_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    D_ptr,
    z_ptr,
    dt_bias_ptr,
    initial_state_ptr,
    cu_seqlens_ptr,
    y_ptr,
    final_state_ptr,
    states_ptr,
    T,
    sequences,
    channels,
    unit,
    blocks_a_unit,
    channels_a_B,
    channels_a_C,
    row_strides,
    x_strides,
    dt_strides,
    z_strides,
    B_strides,
    C_strides,
    D_stride,
    dt_bias_stride,
    A_tile_strides,
    B_tile_strides,
    C_tile_strides,
    initial_row_stride,
    initial_tile_strides,
    state_tile_strides,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    KEEP: tl.constexpr,
    GROUP: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    B_CONSTANT: tl.constexpr,
    C_CONSTANT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """y (B, T, D), final_state (sequences, D, N), states (places, D, N): what enters every KEEP steps.

    Strides: `row_strides` of the batch in x, dt, z, B, C; (time, channel) of x, dt, z; (time, group, state) of B, C.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    blocks = channels // unit * blocks_a_unit
    number = tl.program_id(0) // blocks
    row, first, length, place = sequence(number, T, cu_seqlens_ptr, KEEP)
    first_d, d, in_d = channels_of(tl.program_id(0) % blocks, unit, blocks_a_unit, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    in_n = n < N
    in_tile = in_n[None, :] & in_d[:, None]
    wide_d = d.to(tl.int64)

    x_ptr += row * row_strides[0] + first.to(tl.int64) * x_strides[0]
    dt_ptr += row * row_strides[1] + first.to(tl.int64) * dt_strides[0]
    if z_ptr is not None:
        z_ptr += row * row_strides[2] + first.to(tl.int64) * z_strides[0]
    y_start = y_ptr + (row * T + first) * channels
    B = None
    C = None
    if B_CONSTANT:
        B = load_tile(B_ptr, n, d, in_tile, B_tile_strides)
    else:
        B_ptr += (
            row * row_strides[3]
            + first.to(tl.int64) * B_strides[0]
            + (first_d // channels_a_B).to(tl.int64) * B_strides[1]
        )
    if C_CONSTANT:
        C = load_tile(C_ptr, n, d, in_tile, C_tile_strides)
    else:
        C_ptr += (
            row * row_strides[4]
            + first.to(tl.int64) * C_strides[0]
            + (first_d // channels_a_C).to(tl.int64) * C_strides[1]
        )
    A = load_tile(A_ptr, n, d, in_tile, A_tile_strides) * LOG2E
    skip = load_per_channel(D_ptr, d, in_d, D_stride)
    bias = load_per_channel(dt_bias_ptr, d, in_d, dt_bias_stride)
    if initial_state_ptr is None:
        h = tl.zeros([BLOCK_D, BLOCK_N], tl.float32)
    else:
        h = load_tile(initial_state_ptr + number.to(tl.int64) * initial_row_stride, n, d, in_tile, initial_tile_strides)

    for g in range(0, length, GROUP):
        if g % KEEP == 0:
            kept = states_ptr + (place + g // KEEP) * channels * N
            store_tile(kept, h, n, d, in_tile, state_tile_strides)
        for i in tl.static_range(GROUP):
            t = g + i
            here = in_d & (t < length)
            x = tl.load(x_ptr + t.to(tl.int64) * x_strides[0] + wide_d * x_strides[1], mask=here, other=0.0)
            dt = tl.load(dt_ptr + t.to(tl.int64) * dt_strides[0] + wide_d * dt_strides[1], mask=here, other=0.0)
            x = x.to(tl.float32)
            delta = step_size(dt.to(tl.float32) + bias, here, DT_SOFTPLUS)
            B_t = matrix_at(B, B_ptr, t, B_strides[0], n, B_strides[2], in_n & (t < length))
            C_t = matrix_at(C, C_ptr, t, C_strides[0], n, C_strides[2], in_n & (t < length))
            h = tl.exp2(delta[:, None] * A) * h + (delta * x)[:, None] * B_t
            y = tl.sum(h * C_t, axis=1) + skip * x
            if z_ptr is not None:
                z = tl.load(z_ptr + t.to(tl.int64) * z_strides[0] + wide_d * z_strides[1], mask=here, other=0.0)
                z = z.to(tl.float32)
                y *= z * sigmoid(z)
            tl.store(y_start + t.to(tl.int64) * channels + d, y.to(y_ptr.dtype.element_ty), mask=here)

    if final_state_ptr is not None:
        final = final_state_ptr + number.to(tl.int64) * channels * N
        store_tile(final, h, n, d, in_tile, state_tile_strides)
    if cu_seqlens_ptr is not None:
        stop = first + length
        fill_outside(y_ptr, number, sequences, first, stop, T, channels, d, in_d)
        # Places that belong to no chunk: before the first sequence's, and up to the next sequence's.
        zeros = tl.zeros_like(h)
        after = tl.where(number == sequences - 1, T // KEEP + sequences, stop // KEEP + number + 1)
        for p in range(tl.where(number == 0, 0, place).to(tl.int32), place.to(tl.int32)):
            store_tile(states_ptr + tl.cast(p, tl.int64) * channels * N, zeros, n, d, in_tile, state_tile_strides)
        for p in range((place + tl.cdiv(length, KEEP)).to(tl.int32), after):
            store_tile(states_ptr + tl.cast(p, tl.int64) * channels * N, zeros, n, d, in_tile, state_tile_strides)
