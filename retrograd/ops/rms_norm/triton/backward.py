"""RMSNorm, backward. Symbols and formulas: ../README.md.

`backward_whole` holds a row in registers: one read of dy and s, one write of dx, and the sums over rows that make
dweight and dbias stay in registers until the program ends; each program then writes one row of partial sums, which
`core/kernels/reduce.py` adds in a fixed order. Longer rows take two kernels: `backward_row_means` reads each row for
its mean c, and `backward_columns` owns a block of columns, whose sums over rows fit again.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import (
    forget,
    let_next_start,
    load_parameter,
    sigmoid_grad,
    silu_grad,
    tile_mask,
    wait_for_previous,
)

from .arrays import Gradients, Loaded
from .forward import act, gate_input, load_rows, scale


@triton.jit
def act_grad(z, GATES: tl.constexpr):
    """The derivative of the gate's activation at z."""
    if GATES.sigmoid:
        return sigmoid_grad(z)
    else:
        return silu_grad(z)


@triton.jit
def output_gradient(dy, gate, GATES: tl.constexpr):
    """dv, the gradient before the last gate; fp32."""
    dv = dy.to(tl.float32)
    if GATES.last:
        dv *= act(gate.to(tl.float32), GATES)
    return dv


@triton.jit
def weighted(dv, weight, weight_offset):
    """g = dv * (weight + offset), the gradient at x_hat."""
    g = dv
    if weight is not None:
        g = dv * (weight + weight_offset)
    return g


@triton.jit
def store_row_gradients(tile, weight, weight_offset, bias, x_hat, g, c, rstd, pointers, out, mask, GATES: tl.constexpr):
    """Write dx, dresidual and dgate of a tile from g and the row means c of g * x_hat."""
    ds = rstd * (g - x_hat * c)
    if GATES.first:
        z = tile.gate.to(tl.float32)
        dgate = ds * tile.s.to(tl.float32) * act_grad(z, GATES)
        tl.store(pointers.dgate + out, dgate.to(pointers.dgate.dtype.element_ty), mask=mask)
        ds *= act(z, GATES)
    if GATES.last:
        v = scale(x_hat, weight, weight_offset, bias)
        dgate = tile.dy.to(tl.float32) * v * act_grad(tile.gate.to(tl.float32), GATES)
        tl.store(pointers.dgate + out, dgate.to(pointers.dgate.dtype.element_ty), mask=mask)
    if tile.dsum is not None:
        ds += tile.dsum.to(tl.float32)
    tl.store(pointers.dx + out, ds.to(pointers.dx.dtype.element_ty), mask=mask)
    if pointers.dresidual is not None:
        tl.store(pointers.dresidual + out, ds.to(pointers.dresidual.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def backward_whole(
    dy,
    dsum,
    s,
    gate,
    weight,
    bias,
    rstd_ptr,
    dx_ptr,
    dresidual_ptr,
    dgate_ptr,
    dweight_partial_ptr,
    dbias_partial_ptr,
    inner_dims,
    rows,
    heads,
    weight_offset,
    GATES: tl.constexpr,
    SIZES: tl.constexpr,
    AGAIN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Rows of N <= BLOCK_N columns; partial sums (programs, heads, N)."""
    wait_for_previous(OVERLAP)
    N: tl.constexpr = SIZES.columns
    BLOCK_N: tl.constexpr = SIZES.block
    ROWS: tl.constexpr = SIZES.rows
    head = tl.program_id(0) % heads
    n = tl.arange(0, BLOCK_N)
    weight_row = load_parameter(weight.pointer, head, n, weight.head, n < N, ROWS)
    bias_row = load_parameter(bias.pointer, head, n, bias.head, n < N, ROWS)
    dweight = tl.zeros([ROWS, BLOCK_N], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK_N], tl.float32)

    program = tl.program_id(0) // heads
    programs = tl.num_programs(0) // heads
    for tile in tl.range(program, tl.cdiv(rows, ROWS), programs, num_stages=SIZES.stages):
        m = tile * ROWS + tl.arange(0, ROWS)
        mask = tile_mask(m, rows, n, N, N == BLOCK_N)
        dy_tile = load_rows(dy, m, head, n, inner_dims, mask)
        dsum_tile = load_rows(dsum, m, head, n, inner_dims, mask)
        s_tile = load_rows(s, m, head, n, inner_dims, mask)
        gate_tile = load_rows(gate, m, head, n, inner_dims, mask)
        row = m.to(tl.int64) * heads + head
        rstd = tl.load(rstd_ptr + row, mask=m < rows, other=0.0)[:, None]

        x_hat = gate_input(s_tile, gate_tile, GATES) * rstd
        dv = output_gradient(dy_tile, gate_tile, GATES)
        g = weighted(dv, weight_row, weight_offset)
        c = (tl.sum(g * x_hat, axis=1) * (1.0 / N))[:, None]
        dweight += dv * x_hat
        dbias += dv
        if AGAIN:  # made again from the packed inputs, which take half the registers
            s_tile = forget(s_tile)
            gate_tile = forget(gate_tile)
            dy_tile = forget(dy_tile)
            x_hat = gate_input(s_tile, gate_tile, GATES) * rstd
            g = weighted(output_gradient(dy_tile, gate_tile, GATES), weight_row, weight_offset)
        loaded = Loaded(dy_tile, dsum_tile, s_tile, gate_tile)
        store_row_gradients(
            loaded,
            weight_row,
            weight_offset,
            bias_row,
            x_hat,
            g,
            c,
            rstd,
            Gradients(dx_ptr, dresidual_ptr, dgate_ptr),
            row[:, None] * N + n[None, :],
            mask,
            GATES,
        )

    let_next_start(OVERLAP)
    partial = tl.program_id(0).to(tl.int64) * N + n
    if dweight_partial_ptr is not None:
        dweight_sum = tl.sum(dweight, axis=0).to(dweight_partial_ptr.dtype.element_ty)
        tl.store(dweight_partial_ptr + partial, dweight_sum, mask=n < N)
    if dbias_partial_ptr is not None:
        dbias_sum = tl.sum(dbias, axis=0).to(dbias_partial_ptr.dtype.element_ty)
        tl.store(dbias_partial_ptr + partial, dbias_sum, mask=n < N)


@triton.jit(do_not_specialize=["rows"])
def backward_row_means(
    dy,
    s,
    gate,
    weight,
    rstd_ptr,
    c_ptr,
    inner_dims,
    rows,
    heads,
    weight_offset,
    GATES: tl.constexpr,
    SIZES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """c, the mean of g * x_hat over a row: one row a program, BLOCK_N columns at a time."""
    wait_for_previous(OVERLAP)
    N: tl.constexpr = SIZES.columns
    BLOCK_N: tl.constexpr = SIZES.block
    head = tl.program_id(0) % heads
    m = tl.program_id(0) // heads + tl.arange(0, 1)
    row = m.to(tl.int64) * heads + head
    rstd = tl.load(rstd_ptr + row, mask=m < rows, other=0.0)[:, None]
    total = tl.zeros([1, BLOCK_N], tl.float32)
    for start in tl.range(0, N, BLOCK_N, num_stages=SIZES.stages):
        n = start + tl.arange(0, BLOCK_N)
        mask = tile_mask(m, rows, n, N, N % BLOCK_N == 0)
        dy_tile = load_rows(dy, m, head, n, inner_dims, mask)
        s_tile = load_rows(s, m, head, n, inner_dims, mask)
        gate_tile = load_rows(gate, m, head, n, inner_dims, mask)
        weight_row = load_parameter(weight.pointer, head, n, weight.head, n < N, 1)
        x_hat = gate_input(s_tile, gate_tile, GATES) * rstd
        total += weighted(output_gradient(dy_tile, gate_tile, GATES), weight_row, weight_offset) * x_hat
    let_next_start(OVERLAP)
    tl.store(c_ptr + row, tl.sum(total, axis=1) * (1.0 / N), mask=m < rows)


@triton.jit(do_not_specialize=["rows"])
def backward_columns(
    dy,
    dsum,
    s,
    gate,
    weight,
    bias,
    rstd_ptr,
    c_ptr,
    dx_ptr,
    dresidual_ptr,
    dgate_ptr,
    dweight_partial_ptr,
    dbias_partial_ptr,
    inner_dims,
    rows,
    heads,
    weight_offset,
    GATES: tl.constexpr,
    SIZES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dx, dgate and partial sums for a block of columns, given the row means c; partial sums (programs, heads, N)."""
    wait_for_previous(OVERLAP)
    N: tl.constexpr = SIZES.columns
    BLOCK_N: tl.constexpr = SIZES.block
    ROWS: tl.constexpr = SIZES.rows
    blocks: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    head = tl.program_id(0) // blocks % heads
    program = tl.program_id(0) // blocks // heads
    programs = tl.num_programs(0) // blocks // heads
    n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_row = load_parameter(weight.pointer, head, n, weight.head, n < N, ROWS)
    bias_row = load_parameter(bias.pointer, head, n, bias.head, n < N, ROWS)
    dweight = tl.zeros([ROWS, BLOCK_N], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK_N], tl.float32)

    for tile in tl.range(program, tl.cdiv(rows, ROWS), programs, num_stages=SIZES.stages):
        m = tile * ROWS + tl.arange(0, ROWS)
        mask = tile_mask(m, rows, n, N, N % BLOCK_N == 0)
        dy_tile = load_rows(dy, m, head, n, inner_dims, mask)
        dsum_tile = load_rows(dsum, m, head, n, inner_dims, mask)
        s_tile = load_rows(s, m, head, n, inner_dims, mask)
        gate_tile = load_rows(gate, m, head, n, inner_dims, mask)
        row = m.to(tl.int64) * heads + head
        rstd = tl.load(rstd_ptr + row, mask=m < rows, other=0.0)[:, None]
        c = tl.load(c_ptr + row, mask=m < rows, other=0.0)[:, None]

        x_hat = gate_input(s_tile, gate_tile, GATES) * rstd
        dv = output_gradient(dy_tile, gate_tile, GATES)
        g = weighted(dv, weight_row, weight_offset)
        loaded = Loaded(dy_tile, dsum_tile, s_tile, gate_tile)
        store_row_gradients(
            loaded,
            weight_row,
            weight_offset,
            bias_row,
            x_hat,
            g,
            c,
            rstd,
            Gradients(dx_ptr, dresidual_ptr, dgate_ptr),
            row[:, None] * N + n[None, :],
            mask,
            GATES,
        )
        dweight += dv * x_hat
        dbias += dv

    let_next_start(OVERLAP)
    partial = (program * heads + head).to(tl.int64) * N + n
    if dweight_partial_ptr is not None:
        dweight_sum = tl.sum(dweight, axis=0).to(dweight_partial_ptr.dtype.element_ty)
        tl.store(dweight_partial_ptr + partial, dweight_sum, mask=n < N)
    if dbias_partial_ptr is not None:
        dbias_sum = tl.sum(dbias, axis=0).to(dbias_partial_ptr.dtype.element_ty)
        tl.store(dbias_partial_ptr + partial, dbias_sum, mask=n < N)
