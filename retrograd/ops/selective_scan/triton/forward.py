"""Selective scan, forward, on any GPU. Symbols and formulas: ../README.md.

A program walks one sequence for a block of channels, one step after the other. It is one warp, and its states are a
tile (channels, states) in registers: lanes lie along the channels, so a sum over states is (nearly) within a thread.

Strides of what is loaded or stored as such a tile are not specialised: were the compiler to know which of them is 1, it
would lay the tile out for the memory instead.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, let_next_start, sigmoid, wait_for_previous

from .arrays import Matrix, Steps
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
    zeros,
)


@triton.jit
def fill_slots(states, sequence, rows, channels, block, SIZES: tl.constexpr):
    """Zeros where slots belong to no chunk: before those of the first sequence, and up to the next sequence's."""
    stop = sequence.first + sequence.length
    last = sequence.number == rows.sequences - 1
    next_slot = tl.where(last, rows.time // SIZES.chunk + rows.sequences, stop // SIZES.chunk + sequence.number + 1)
    nothing = zeros(SIZES)
    for slot in range(tl.where(sequence.number == 0, 0, sequence.slot).to(tl.int32), sequence.slot.to(tl.int32)):
        store_states(states.pointer, tl.cast(slot, tl.int64) * channels.total * SIZES.N, states, block, nothing)
    for slot in range((sequence.slot + tl.cdiv(sequence.length, SIZES.chunk)).to(tl.int32), next_slot):
        store_states(states.pointer, tl.cast(slot, tl.int64) * channels.total * SIZES.N, states, block, nothing)


@triton.jit(do_not_specialize=["A", "constant_B", "constant_C", "initial_state", "states", "rows"])
def forward_scan(
    x,
    dt,
    A,
    B,
    C,
    constant_B,
    constant_C,
    D,
    z,
    dt_bias,
    initial_state,
    cu_seqlens_ptr,
    y_ptr,
    final_state_ptr,
    states,
    rows,
    channels,
    SIZES: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """y (B, T, D), final_state (sequences, D, N), states (slots, D, N): what enters every chunk.

    B and C are given where they have a time axis, otherwise constant_B and constant_C. See arrays.py.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    GROUP: tl.constexpr = SIZES.group
    blocks = channels.total // channels.unit * channels.blocks_a_unit
    sequence = sequence_of(tl.program_id(0) // blocks, rows, cu_seqlens_ptr, SIZES.chunk)
    block = block_of(tl.program_id(0) % blocks, channels, SIZES)

    x = Steps(first_step(x, sequence, rows.x), x.time, x.channel)
    dt = Steps(first_step(dt, sequence, rows.dt), dt.time, dt.channel)
    z = Steps(first_step(z, sequence, rows.z), z.time, z.channel)
    y_start = y_ptr + (sequence.row * rows.time + sequence.first) * channels.total
    tile_B = load_constant(constant_B, block)
    B = Matrix(first_matrix(B, sequence, rows.B, block.first, channels.of_B), B.time, B.group, B.state)
    tile_C = load_constant(constant_C, block)
    C = Matrix(first_matrix(C, sequence, rows.C, block.first, channels.of_C), C.time, C.group, C.state)
    a2 = load_tile(A.pointer, A, block.d, block.n, block.in_tile) * LOG2E
    skip = load_parameter(D, block)
    bias = load_parameter(dt_bias, block)
    h = load_states(initial_state, sequence, block, SIZES)

    for g in range(0, sequence.length, GROUP):
        if g % SIZES.chunk == 0:
            slot = sequence.slot + g // SIZES.chunk
            store_states(states.pointer, slot * channels.total * SIZES.N, states, block, h)
        for i in tl.static_range(GROUP):
            t = g + i
            here = block.in_d & (t < sequence.length)
            x_t = load_steps(x, t, block, here)
            dt_t = load_steps(dt, t, block, here)
            x_t = x_t.to(tl.float32)
            delta = step_size(dt_t.to(tl.float32) + bias, here, DT_SOFTPLUS)
            B_t = matrix_at(B, tile_B, t, block.n, block.in_n & (t < sequence.length))
            C_t = matrix_at(C, tile_C, t, block.n, block.in_n & (t < sequence.length))
            h = tl.exp2(delta[:, None] * a2) * h + (delta * x_t)[:, None] * B_t
            y = tl.sum(h * C_t, axis=1) + skip * x_t
            if z.pointer is not None:
                z_t = load_steps(z, t, block, here).to(tl.float32)
                y *= z_t * sigmoid(z_t)
            tl.store(y_start + t.to(tl.int64) * channels.total + block.d, y.to(y_ptr.dtype.element_ty), mask=here)

    own = sequence.number.to(tl.int64) * channels.total * SIZES.N
    store_states(final_state_ptr, own, states, block, h)
    if cu_seqlens_ptr is not None:
        fill_outside(y_ptr, sequence, rows, channels.total, 0, block.d, block.in_d)
        fill_slots(states, sequence, rows, channels, block, SIZES)
