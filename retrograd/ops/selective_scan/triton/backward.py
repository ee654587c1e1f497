"""Selective scan, backward, on any GPU. Symbols and formulas: ../README.md.

`backward_scan` has the programs and tiles of the forward pass and walks over the kept chunks from the last to the
first. In a chunk it goes forward once, to note the state that enters each group of GROUP steps; then over the groups
from the last, whose states and decays it computes once more, into registers, before it goes back over them. dB and dC
leave as sums over a program's channels, the gradients of parameters as sums over its sequence, all in fp32;
`core/kernels/reduce.py` adds these in a fixed order.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import (
    LOG2E,
    add_compensated,
    let_next_start,
    rounded_product,
    sigmoid,
    wait_for_previous,
)

from .forward import (
    channels_of,
    fill_outside,
    load_per_channel,
    load_tile,
    matrix_at,
    sequence,
    step_size,
    store_tile,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def append(values, value):
    """A tuple with one value more."""
    return values + (value,)  # noqa: RUF005


@triton.jit
def store_steps(ptr, t, channels, d, value, mask):
    """A step's values for each channel, where they are wanted."""
    if ptr is not None:
        tl.store(ptr + t.to(tl.int64) * channels + d, value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_sequence(ptr, number, channels, d, value, mask):
    """A sequence's sum for each channel, where it is wanted."""
    if ptr is not None:
        tl.store(ptr + number.to(tl.int64) * channels + d, value, mask=mask)


@triton.jit
def store_states(ptr, number, size, n, d, value, mask, strides):
    """A sequence's tile, where it is wanted."""
    if ptr is not None:
        store_tile(ptr + number.to(tl.int64) * size, value, n, d, mask, strides)


@triton.jit
def fill_partial(ptr, number, sequences, start, stop, T, columns, offset, n, mask):
    """As `fill_outside`, for the sums of dB and dC."""
    if ptr is not None:
        zero = tl.zeros_like(n).to(tl.float32)
        for t in range(tl.where(number == 0, start, 0)):
            tl.store(ptr + tl.cast(t, tl.int64) * columns + offset + n, zero, mask=mask)
        for t in range(tl.where(number == sequences - 1, stop, T), T):
            tl.store(ptr + tl.cast(t, tl.int64) * columns + offset + n, zero, mask=mask)


@triton.jit(
    do_not_specialize=[
        "T", "sequences", "row_strides", "A_tile_strides", "B_tile_strides", "C_tile_strides", "final_row_stride",
        "final_tile_strides", "state_tile_strides", "scratch_tile_strides",
    ]
)  # fmt: skip
def backward_scan(
    dy_ptr,
    dfinal_state_ptr,
    x_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    D_ptr,
    z_ptr,
    dt_bias_ptr,
    cu_seqlens_ptr,
    states_ptr,
    entering_ptr,
    dx_ptr,
    ddt_ptr,
    dz_ptr,
    dinitial_state_ptr,
    dBC_partial_ptr,
    dA_partial_ptr,
    dB_partial_ptr,
    dC_partial_ptr,
    dD_partial_ptr,
    ddt_bias_partial_ptr,
    T,
    sequences,
    channels,
    unit,
    blocks_a_unit,
    channels_a_B,
    channels_a_C,
    row_strides,
    dy_strides,
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
    final_row_stride,
    final_tile_strides,
    state_tile_strides,
    scratch_tile_strides,
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
    """Gradients are dense. Sums over a program's channels or sequence:

    dBC_partial (B T, blocks of channels, 2, N): of dC, then of dB; only what varies in time is there.
    dA_partial, and dB_partial and dC_partial where these are constant, (sequences, D, N);
    dD_partial, ddt_bias_partial (sequences, D).

    `entering` (programs, KEEP / GROUP, tile) holds a chunk's states. `row_strides` are those of x, dt, z, B, C, dy.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    blocks = channels // unit * blocks_a_unit
    block = tl.program_id(0) % blocks
    number = tl.program_id(0) // blocks
    row, first, length, place = sequence(number, T, cu_seqlens_ptr, KEEP)
    first_d, d, in_d = channels_of(block, unit, blocks_a_unit, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    in_n = n < N
    in_tile = in_n[None, :] & in_d[:, None]
    wide_d = d.to(tl.int64)
    own_n = tl.arange(0, BLOCK_N)
    own_d = tl.arange(0, BLOCK_D)
    everywhere = (own_n < BLOCK_N)[None, :] & (own_d < BLOCK_D)[:, None]

    dy_ptr += row * row_strides[5] + first.to(tl.int64) * dy_strides[0]
    x_ptr += row * row_strides[0] + first.to(tl.int64) * x_strides[0]
    dt_ptr += row * row_strides[1] + first.to(tl.int64) * dt_strides[0]
    if z_ptr is not None:
        z_ptr += row * row_strides[2] + first.to(tl.int64) * z_strides[0]
    start = row * T + first
    if B_CONSTANT:
        B = load_tile(B_ptr, n, d, in_tile, B_tile_strides)
        dB = tl.zeros([BLOCK_D, BLOCK_N], tl.float32)
    else:
        B = None
        B_ptr += (
            row * row_strides[3]
            + first.to(tl.int64) * B_strides[0]
            + (first_d // channels_a_B).to(tl.int64) * B_strides[1]
        )
    if C_CONSTANT:
        C = load_tile(C_ptr, n, d, in_tile, C_tile_strides)
        dC = tl.zeros([BLOCK_D, BLOCK_N], tl.float32)
    else:
        C = None
        C_ptr += (
            row * row_strides[4]
            + first.to(tl.int64) * C_strides[0]
            + (first_d // channels_a_C).to(tl.int64) * C_strides[1]
        )
    PARTS: tl.constexpr = 2 - B_CONSTANT - C_CONSTANT
    B_PART: tl.constexpr = PARTS - 1
    columns = blocks * PARTS * N
    A = load_tile(A_ptr, n, d, in_tile, A_tile_strides) * LOG2E
    skip = load_per_channel(D_ptr, d, in_d, D_stride)
    bias = load_per_channel(dt_bias_ptr, d, in_d, dt_bias_stride)
    if dfinal_state_ptr is None:
        g = tl.zeros([BLOCK_D, BLOCK_N], tl.float32)
    else:
        g = load_tile(dfinal_state_ptr + number.to(tl.int64) * final_row_stride, n, d, in_tile, final_tile_strides)
    dA = tl.zeros([BLOCK_D, BLOCK_N], tl.float32)
    dD = tl.zeros([BLOCK_D], tl.float32)
    dbias = tl.zeros([BLOCK_D], tl.float32)
    dD_lost = tl.zeros([BLOCK_D], tl.float32)
    dbias_lost = tl.zeros([BLOCK_D], tl.float32)
    entering_ptr += tl.program_id(0).to(tl.int64) * (KEEP // GROUP * BLOCK_N * BLOCK_D)

    chunks = tl.cdiv(length, KEEP)
    for k in range(chunks):
        chunk = chunks - 1 - k
        groups = tl.cdiv(tl.minimum(length - chunk * KEEP, KEEP), GROUP)
        h = load_tile(states_ptr + (place + chunk) * channels * N, n, d, in_tile, state_tile_strides)
        for j in range(groups - 1):
            noted = entering_ptr + j * (BLOCK_N * BLOCK_D)
            store_tile(noted, h, own_n, own_d, everywhere, scratch_tile_strides)
            for i in tl.static_range(GROUP):
                t = chunk * KEEP + j * GROUP + i
                x = tl.load(x_ptr + t.to(tl.int64) * x_strides[0] + wide_d * x_strides[1], mask=in_d, other=0.0)
                dt = tl.load(dt_ptr + t.to(tl.int64) * dt_strides[0] + wide_d * dt_strides[1], mask=in_d, other=0.0)
                delta = step_size(dt.to(tl.float32) + bias, in_d, DT_SOFTPLUS)
                B_t = matrix_at(B, B_ptr, t, B_strides[0], n, B_strides[2], in_n)
                h = tl.exp2(delta[:, None] * A) * h + (delta * x.to(tl.float32))[:, None] * B_t
        tl.debug_barrier()

        for back in range(groups):
            group = chunk * KEEP + (groups - 1 - back) * GROUP
            xs = ()
            raws = ()
            deltas = ()
            decays = ()
            states = (h,)  # the one that enters the group, then the one after each of its steps
            for i in tl.static_range(GROUP):
                t = group + i
                here = in_d & (t < length)
                x = tl.load(x_ptr + t.to(tl.int64) * x_strides[0] + wide_d * x_strides[1], mask=here, other=0.0)
                dt = tl.load(dt_ptr + t.to(tl.int64) * dt_strides[0] + wide_d * dt_strides[1], mask=here, other=0.0)
                x = x.to(tl.float32)
                raw = dt.to(tl.float32) + bias
                delta = step_size(raw, here, DT_SOFTPLUS)
                B_t = matrix_at(B, B_ptr, t, B_strides[0], n, B_strides[2], in_n & (t < length))
                decay = tl.exp2(delta[:, None] * A)
                h = decay * h + (delta * x)[:, None] * B_t
                xs = append(xs, x)
                raws = append(raws, raw)
                deltas = append(deltas, delta)
                decays = append(decays, decay)
                states = append(states, h)
            # The state that enters the group before; the chunk's first group has none.
            noted = entering_ptr + (groups - 2 - back) * (BLOCK_N * BLOCK_D)
            h = load_tile(noted, own_n, own_d, everywhere & (back < groups - 1), scratch_tile_strides)

            for i in tl.static_range(GROUP - 1, -1, -1):
                t = group + i
                here = in_d & (t < length)
                in_matrix = in_n & (t < length)
                dy = tl.load(dy_ptr + t.to(tl.int64) * dy_strides[0] + wide_d * dy_strides[1], mask=here, other=0.0)
                dy = dy.to(tl.float32)
                B_t = matrix_at(B, B_ptr, t, B_strides[0], n, B_strides[2], in_matrix)
                C_t = matrix_at(C, C_ptr, t, C_strides[0], n, C_strides[2], in_matrix)
                if z_ptr is not None:
                    z = tl.load(z_ptr + t.to(tl.int64) * z_strides[0] + wide_d * z_strides[1], mask=here, other=0.0)
                    z = z.to(tl.float32)
                    s = sigmoid(z)
                    if dz_ptr is not None:
                        y = tl.sum(states[i + 1] * C_t, axis=1) + skip * xs[i]
                        store_steps(dz_ptr, start + t, channels, d, dy * y * s * (1.0 + z * (1.0 - s)), here)
                    dy *= z * s
                dC_t = rounded_product(dy[:, None], states[i + 1])
                g += dy[:, None] * C_t
                dB_t = rounded_product(g, (deltas[i] * xs[i])[:, None])
                dxB = tl.sum(g * B_t, axis=1)  # the gradient of delta x
                g *= decays[i]
                dlog = g * states[i]  # the gradient of delta A
                dA += dlog * deltas[i][:, None]
                ddelta = tl.sum(dlog * A, axis=1) * LN2 + dxB * xs[i]
                if DT_SOFTPLUS:
                    ddelta *= sigmoid(raws[i])
                ddelta = tl.where(here, ddelta, 0.0)
                dbias, dbias_lost = add_compensated(dbias, dbias_lost, ddelta)
                dD, dD_lost = add_compensated(dD, dD_lost, dy * xs[i])
                store_steps(dx_ptr, start + t, channels, d, dxB * deltas[i] + skip * dy, here)
                store_steps(ddt_ptr, start + t, channels, d, ddelta, here)
                if B_CONSTANT:
                    dB += dB_t
                if C_CONSTANT:
                    dC += dC_t
                if dBC_partial_ptr is not None:
                    at = dBC_partial_ptr + (start + t) * columns + block * (PARTS * N) + n
                    if not C_CONSTANT:
                        tl.store(at, tl.sum(dC_t, axis=0), mask=in_matrix)
                    if not B_CONSTANT:
                        tl.store(at + B_PART * N, tl.sum(dB_t, axis=0), mask=in_matrix)

    size = tl.cast(channels, tl.int64) * N
    store_states(dinitial_state_ptr, number, size, n, d, g, in_tile, state_tile_strides)
    store_states(dA_partial_ptr, number, size, n, d, dA, in_tile, state_tile_strides)
    if B_CONSTANT:
        store_states(dB_partial_ptr, number, size, n, d, dB, in_tile, state_tile_strides)
    if C_CONSTANT:
        store_states(dC_partial_ptr, number, size, n, d, dC, in_tile, state_tile_strides)
    store_sequence(dD_partial_ptr, number, channels, d, dD, in_d)
    store_sequence(ddt_bias_partial_ptr, number, channels, d, dbias, in_d)
    if cu_seqlens_ptr is not None:
        stop = first + length
        fill_outside(dx_ptr, number, sequences, first, stop, T, channels, d, in_d)
        fill_outside(ddt_ptr, number, sequences, first, stop, T, channels, d, in_d)
        fill_outside(dz_ptr, number, sequences, first, stop, T, channels, d, in_d)
        if dBC_partial_ptr is not None:
            for part in tl.static_range(PARTS):
                offset = (block * PARTS + part) * N
                fill_partial(dBC_partial_ptr, number, sequences, first, stop, T, columns, offset, n, in_n)
