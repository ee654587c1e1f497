"""RMSNorm, forward. Symbols and formulas: ../README.md.

`forward_whole` holds its rows in registers; `forward_looped`, for rows that do not fit, reads a row twice, the second
time mostly from L2.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import (
    let_next_start,
    load_parameter,
    load_tile,
    sigmoid,
    silu,
    tile_mask,
    wait_for_previous,
)


@triton.jit
def load_rows(array, m, head, n, inner_dims, mask):
    """A tile of an array with rows; None where the array is absent."""
    return load_tile(array.pointer, m, head, n, inner_dims, array[1:], mask)


@triton.jit
def add_residual(x, residual, sum_ptr):
    """The sum s = x + residual, rounded to its own dtype, so that the backward pass reads what was normalised."""
    s = x
    if residual is not None:
        s = (x.to(tl.float32) + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
    return s


@triton.jit
def act(z, GATES: tl.constexpr):
    """The activation of the gate z: silu or sigmoid."""
    if GATES.sigmoid:
        return sigmoid(z)
    else:
        return silu(z)


@triton.jit
def gate_input(s, gate, GATES: tl.constexpr):
    """What is normalised: u = s, or s * act(gate); fp32."""
    u = s.to(tl.float32)
    if GATES.first:
        u *= act(gate.to(tl.float32), GATES)
    return u


@triton.jit
def scale(x_hat, weight, weight_offset, bias):
    """v = x_hat * (weight + offset) + bias; fp32."""
    v = x_hat
    if weight is not None:
        v *= weight + weight_offset
    if bias is not None:
        v += bias
    return v


@triton.jit
def scale_and_gate(x_hat, weight, weight_offset, bias, gate, GATES: tl.constexpr):
    """y = v, or v * act(gate) where the gate comes last; fp32."""
    y = scale(x_hat, weight, weight_offset, bias)
    if GATES.last:
        y *= act(gate.to(tl.float32), GATES)
    return y


@triton.jit(do_not_specialize=["rows"])
def forward_whole(
    x,
    residual,
    gate,
    weight,
    bias,
    y_ptr,
    sum_ptr,
    rstd_ptr,
    inner_dims,
    rows,
    heads,
    eps,
    weight_offset,
    GATES: tl.constexpr,
    SIZES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Rows of N <= BLOCK_N columns, a tile of ROWS rows a program: one read, one write."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    N: tl.constexpr = SIZES.columns
    BLOCK_N: tl.constexpr = SIZES.block
    ROWS: tl.constexpr = SIZES.rows
    head = tl.program_id(0) % heads
    m = tl.program_id(0) // heads * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, BLOCK_N)
    mask = tile_mask(m, rows, n, N, N == BLOCK_N)
    # The tiles are asked for first: what comes from device memory takes longest.
    x_tile = load_rows(x, m, head, n, inner_dims, mask)
    residual_tile = load_rows(residual, m, head, n, inner_dims, mask)
    gate_tile = load_rows(gate, m, head, n, inner_dims, mask)
    weight_row = load_parameter(weight.pointer, head, n, weight.head, n < N, ROWS)
    bias_row = load_parameter(bias.pointer, head, n, bias.head, n < N, ROWS)

    row = m.to(tl.int64) * heads + head
    out = row[:, None] * N + n[None, :]
    s = add_residual(x_tile, residual_tile, sum_ptr)
    if residual_tile is not None:
        tl.store(sum_ptr + out, s, mask=mask)
    u = gate_input(s, gate_tile, GATES)
    rstd = tl.rsqrt(tl.sum(u * u, axis=1) * (1.0 / N) + eps)
    y = scale_and_gate(u * rstd[:, None], weight_row, weight_offset, bias_row, gate_tile, GATES)
    tl.store(y_ptr + out, y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(rstd_ptr + row, rstd, mask=m < rows)


@triton.jit(do_not_specialize=["rows"])
def forward_looped(
    x,
    residual,
    gate,
    weight,
    bias,
    y_ptr,
    sum_ptr,
    rstd_ptr,
    inner_dims,
    rows,
    heads,
    eps,
    weight_offset,
    GATES: tl.constexpr,
    SIZES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Rows of any N, one a program, BLOCK_N columns at a time."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    N: tl.constexpr = SIZES.columns
    BLOCK_N: tl.constexpr = SIZES.block
    head = tl.program_id(0) % heads
    m = tl.program_id(0) // heads + tl.arange(0, 1)
    row = m.to(tl.int64) * heads + head

    squares = tl.zeros([1, BLOCK_N], tl.float32)
    for start in tl.range(0, N, BLOCK_N, num_stages=SIZES.stages):
        n = start + tl.arange(0, BLOCK_N)
        mask = tile_mask(m, rows, n, N, N % BLOCK_N == 0)
        x_tile = load_rows(x, m, head, n, inner_dims, mask)
        residual_tile = load_rows(residual, m, head, n, inner_dims, mask)
        gate_tile = load_rows(gate, m, head, n, inner_dims, mask)
        u = gate_input(add_residual(x_tile, residual_tile, sum_ptr), gate_tile, GATES)
        squares += u * u
    rstd = tl.rsqrt(tl.sum(squares, axis=1) * (1.0 / N) + eps)
    tl.store(rstd_ptr + row, rstd, mask=m < rows)

    for start in tl.range(0, N, BLOCK_N, num_stages=SIZES.stages):
        n = start + tl.arange(0, BLOCK_N)
        mask = tile_mask(m, rows, n, N, N % BLOCK_N == 0)
        x_tile = load_rows(x, m, head, n, inner_dims, mask)
        residual_tile = load_rows(residual, m, head, n, inner_dims, mask)
        gate_tile = load_rows(gate, m, head, n, inner_dims, mask)
        weight_row = load_parameter(weight.pointer, head, n, weight.head, n < N, 1)
        bias_row = load_parameter(bias.pointer, head, n, bias.head, n < N, 1)
        out = row[:, None] * N + n[None, :]
        s = add_residual(x_tile, residual_tile, sum_ptr)
        if residual_tile is not None:
            tl.store(sum_ptr + out, s, mask=mask)
        u = gate_input(s, gate_tile, GATES)
        y = scale_and_gate(u * rstd[:, None], weight_row, weight_offset, bias_row, gate_tile, GATES)
        tl.store(y_ptr + out, y.to(y_ptr.dtype.element_ty), mask=mask)
