"""Selective scan, backward, on any GPU. Symbols and formulas: ../README.md.

`backward_scan` has the programs and tiles of the forward pass and walks over the saved chunks from the last to the
first. In a chunk it goes forward once, to note the state that enters each group of steps; then over the groups from the
last, whose states and decays it computes once more, into registers, before it goes back over them. dB and dC leave as
sums over a program's channels, the gradients of parameters as sums over its sequence, all in fp32;
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

from .arrays import Given, Gradients, Group, Matrix, Partial, Steps, Sums, Tiles
from .steps import (
    block_of,
    fill_outside,
    first_matrix,
    first_step,
    load_constant,
    load_parameter,
    load_states,
    load_steps,
    load_tile,
    matrix_at,
    sequence_of,
    step_size,
    store_states,
    store_tile,
    zeros,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def append(values, value):
    """A tuple with one value more."""
    return values + (value,)  # noqa: RUF005


@triton.jit
def store_steps(ptr, row, channels, d, value, mask):
    """A step's values for each channel, where they are wanted."""
    if ptr is not None:
        tl.store(ptr + row.to(tl.int64) * channels.total + d, value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_sequence(ptr, sequence, channels, block, value):
    """A sequence's sum for each channel, where it is wanted."""
    if ptr is not None:
        tl.store(ptr + sequence.number.to(tl.int64) * channels.total + block.d, value, mask=block.in_d)


@triton.jit
def note_states(h, start, groups, given, entering, block, SIZES: tl.constexpr, DT_SOFTPLUS: tl.constexpr):
    """Walk over a chunk from its first step and note the state that enters each group; returns that of the last."""
    GROUP: tl.constexpr = SIZES.group
    for j in range(groups - 1):
        store_noted(entering, j, h, SIZES)
        for i in tl.static_range(GROUP):
            t = start + j * GROUP + i
            x = load_steps(given.x, t, block, block.in_d)
            dt = load_steps(given.dt, t, block, block.in_d)
            delta = step_size(dt.to(tl.float32) + given.bias, block.in_d, DT_SOFTPLUS)
            B_t = matrix_at(given.B, given.tile_B, t, block.n, block.in_n)
            h = tl.exp2(delta[:, None] * given.a2) * h + (delta * x.to(tl.float32))[:, None] * B_t
    return h


@triton.jit
def store_noted(entering, j, h, SIZES: tl.constexpr):
    """Note the state that enters group j of a chunk."""
    n, d = tl.arange(0, SIZES.states), tl.arange(0, SIZES.channels)
    everywhere = (n < SIZES.states)[None, :] & (d < SIZES.channels)[:, None]
    store_tile(entering.pointer + j * (SIZES.states * SIZES.channels), entering, d, n, h, everywhere)


@triton.jit
def load_noted(ptr, strides, there, SIZES: tl.constexpr):
    """A noted state, where it is there."""
    n, d = tl.arange(0, SIZES.states), tl.arange(0, SIZES.channels)
    everywhere = (n < SIZES.states)[None, :] & (d < SIZES.channels)[:, None]
    return load_tile(ptr, strides, d, n, everywhere & there)


@triton.jit
def walk_group(h, start, length, given, block, SIZES: tl.constexpr, DT_SOFTPLUS: tl.constexpr):
    """Walk over a group of steps, which the state h enters; what the way back needs stays in registers."""
    GROUP: tl.constexpr = SIZES.group
    xs = ()
    raws = ()
    deltas = ()
    decays = ()
    states = (h,)
    for i in tl.static_range(GROUP):
        t = start + i
        here = block.in_d & (t < length)
        x = load_steps(given.x, t, block, here)
        dt = load_steps(given.dt, t, block, here)
        x = x.to(tl.float32)
        raw = dt.to(tl.float32) + given.bias
        delta = step_size(raw, here, DT_SOFTPLUS)
        B_t = matrix_at(given.B, given.tile_B, t, block.n, block.in_n & (t < length))
        decay = tl.exp2(delta[:, None] * given.a2)
        h = decay * h + (delta * x)[:, None] * B_t
        xs = append(xs, x)
        raws = append(raws, raw)
        deltas = append(deltas, delta)
        decays = append(decays, decay)
        states = append(states, h)
    return Group(xs, raws, deltas, decays, states)


@triton.jit
def through_gate(dy, x, h, C_t, t, given, gradients, channels, block, here):
    """The gradient of y before the gate, from that after it; stores the gradient of the gate."""
    if given.z.pointer is None:
        return dy
    else:
        z = load_steps(given.z, t, block, here).to(tl.float32)
        s = sigmoid(z)
        if gradients.z is not None:
            y = tl.sum(h * C_t, axis=1) + given.skip * x
            row = gradients.start + t
            store_steps(gradients.z, row, channels, block.d, dy * y * s * (1.0 + z * (1.0 - s)), here)
        return dy * (z * s)


@triton.jit
def store_matrices(partial, step, dB_t, dC_t, given, n, mask, N: tl.constexpr):
    """A step's sums over the program's channels: of dC, then of dB, each where it has a time axis."""
    if partial.pointer is not None:
        PARTS: tl.constexpr = (given.tile_B is None) + (given.tile_C is None)
        at = partial.pointer + step * partial.columns + partial.block * (PARTS * N) + n
        if given.tile_C is None:
            tl.store(at, tl.sum(dC_t, axis=0), mask=mask)
        if given.tile_B is None:
            B_PART: tl.constexpr = given.tile_C is None
            tl.store(at + B_PART * N, tl.sum(dB_t, axis=0), mask=mask)


@triton.jit
def step_back(sums, i: tl.constexpr, t, group, given, gradients, length, channels, block, DT_SOFTPLUS: tl.constexpr):
    """The sums with step i of a group, step t of the sequence, whose gradients it stores; its terms of dB and dC."""
    here = block.in_d & (t < length)
    in_matrix = block.in_n & (t < length)
    dy = load_steps(given.dy, t, block, here).to(tl.float32)
    B_t = matrix_at(given.B, given.tile_B, t, block.n, in_matrix)
    C_t = matrix_at(given.C, given.tile_C, t, block.n, in_matrix)
    x = group.xs[i]
    delta = group.deltas[i]
    dy = through_gate(dy, x, group.states[i + 1], C_t, t, given, gradients, channels, block, here)
    dC_t = rounded_product(dy[:, None], group.states[i + 1])
    g = sums.g + dy[:, None] * C_t
    dB_t = rounded_product(g, (delta * x)[:, None])
    dxB = tl.sum(g * B_t, axis=1)  # the gradient of delta x
    g *= group.decays[i]
    dlog = g * group.states[i]  # the gradient of delta A
    dA = sums.dA + dlog * delta[:, None]
    ddelta = tl.sum(dlog * given.a2, axis=1) * LN2 + dxB * x
    if DT_SOFTPLUS:
        ddelta *= sigmoid(group.raws[i])
    ddelta = tl.where(here, ddelta, 0.0)
    dbias, dbias_lost = add_compensated(sums.dbias, sums.dbias_lost, ddelta)
    dD, dD_lost = add_compensated(sums.dD, sums.dD_lost, dy * x)
    store_steps(gradients.x, gradients.start + t, channels, block.d, dxB * delta + given.skip * dy, here)
    store_steps(gradients.dt, gradients.start + t, channels, block.d, ddelta, here)
    return Sums(g, dA, dD, dbias, dD_lost, dbias_lost), dB_t, dC_t


@triton.jit(do_not_specialize=["dfinal_state", "A", "constant_B", "constant_C", "states", "entering", "rows"])
def backward_scan(
    dy,
    dfinal_state,
    x,
    dt,
    A,
    B,
    C,
    constant_B,
    constant_C,
    parameters,
    z,
    cu_seqlens_ptr,
    states,
    entering,
    outputs,
    rows,
    channels,
    SIZES: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Gradients are dense. Sums over a program's channels or sequence:

    dBC_partial (B T, blocks of channels, 2, N): of dC, then of dB; only what varies in time is there.
    dA_partial, and dB_partial and dC_partial where these are constant, (sequences, D, N);
    dD_partial, ddt_bias_partial (sequences, D).

    `entering` (programs, groups of a chunk, tile) holds a chunk's states.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    GROUP: tl.constexpr = SIZES.group
    blocks = channels.total // channels.unit * channels.blocks_a_unit
    number = tl.program_id(0) % blocks
    sequence = sequence_of(tl.program_id(0) // blocks, rows, cu_seqlens_ptr, SIZES.chunk)
    block = block_of(number, channels, SIZES)

    dy = Steps(first_step(dy, sequence, rows.dy), dy.time, dy.channel)
    x = Steps(first_step(x, sequence, rows.x), x.time, x.channel)
    dt = Steps(first_step(dt, sequence, rows.dt), dt.time, dt.channel)
    z = Steps(first_step(z, sequence, rows.z), z.time, z.channel)
    first_row = sequence.row * rows.time + sequence.first
    tile_B = load_constant(constant_B, block)
    B = Matrix(first_matrix(B, sequence, rows.B, block.first, channels.of_B), B.time, B.group, B.state)
    if tile_B is not None:
        dB = zeros(SIZES)
    tile_C = load_constant(constant_C, block)
    if tile_C is not None:
        dC = zeros(SIZES)
    C = Matrix(first_matrix(C, sequence, rows.C, block.first, channels.of_C), C.time, C.group, C.state)
    PARTS: tl.constexpr = (tile_B is None) + (tile_C is None)
    columns = blocks * PARTS * SIZES.N
    a2 = load_tile(A.pointer, A, block.d, block.n, block.in_tile) * LOG2E
    skip = load_parameter(parameters.D, block)
    bias = load_parameter(parameters.dt_bias, block)
    given = Given(dy, x, dt, z, B, C, tile_B, tile_C, a2, skip, bias)
    gradients = Gradients(first_row, outputs.dx_ptr, outputs.ddt_ptr, outputs.dz_ptr)
    g = load_states(dfinal_state, sequence, block, SIZES)
    nothing = tl.zeros_like(bias)
    sums = Sums(g, zeros(SIZES), nothing, nothing, nothing, nothing)
    own = tl.program_id(0).to(tl.int64) * (SIZES.chunk // GROUP * SIZES.states * SIZES.channels)
    entering = Tiles(entering.pointer + own, entering.channel, entering.state)

    chunks = tl.cdiv(sequence.length, SIZES.chunk)
    partial = Partial(outputs.dBC_partial_ptr, columns, number)
    for k in range(chunks):
        chunk = chunks - 1 - k
        groups = tl.cdiv(tl.minimum(sequence.length - chunk * SIZES.chunk, SIZES.chunk), GROUP)
        saved = states.pointer + (sequence.slot + chunk) * channels.total * SIZES.N
        h = load_tile(saved, states, block.d, block.n, block.in_tile)
        h = note_states(h, chunk * SIZES.chunk, groups, given, entering, block, SIZES, DT_SOFTPLUS)
        tl.debug_barrier()

        for back in range(groups):
            start = chunk * SIZES.chunk + (groups - 1 - back) * GROUP
            group = walk_group(h, start, sequence.length, given, block, SIZES, DT_SOFTPLUS)
            # The state that enters the group before; the chunk's first group has none.
            noted = entering.pointer + (groups - 2 - back) * (SIZES.states * SIZES.channels)
            h = load_noted(noted, entering, back < groups - 1, SIZES)
            for i in tl.static_range(GROUP - 1, -1, -1):
                sums, dB_t, dC_t = step_back(
                    sums, i, start + i, group, given, gradients, sequence.length, channels, block, DT_SOFTPLUS
                )
                if tile_B is not None:
                    dB += dB_t
                if tile_C is not None:
                    dC += dC_t
                in_matrix = block.in_n & (start + i < sequence.length)
                store_matrices(partial, first_row + (start + i), dB_t, dC_t, given, block.n, in_matrix, SIZES.N)

    size = tl.cast(channels.total, tl.int64) * SIZES.N
    store_states(outputs.dinitial_state_ptr, sequence.number.to(tl.int64) * size, states, block, sums.g)
    store_states(outputs.dA_partial_ptr, sequence.number.to(tl.int64) * size, states, block, sums.dA)
    if tile_B is not None:
        store_states(outputs.dB_partial_ptr, sequence.number.to(tl.int64) * size, states, block, dB)
    if tile_C is not None:
        store_states(outputs.dC_partial_ptr, sequence.number.to(tl.int64) * size, states, block, dC)
    store_sequence(outputs.dD_partial_ptr, sequence, channels, block, sums.dD)
    store_sequence(outputs.ddt_bias_partial_ptr, sequence, channels, block, sums.dbias)
    if cu_seqlens_ptr is not None:
        fill_outside(outputs.dx_ptr, sequence, rows, channels.total, 0, block.d, block.in_d)
        fill_outside(outputs.ddt_ptr, sequence, rows, channels.total, 0, block.d, block.in_d)
        fill_outside(outputs.dz_ptr, sequence, rows, channels.total, 0, block.d, block.in_d)
        for part in tl.static_range(PARTS):
            first = (number * PARTS + part) * SIZES.N
            fill_outside(outputs.dBC_partial_ptr, sequence, rows, partial.columns, first, block.n, block.in_n)
