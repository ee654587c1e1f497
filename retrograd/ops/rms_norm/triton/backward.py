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
    load_tile,
    silu,
    silu_grad,
    tile_mask,
    wait_for_previous,
)

from .forward import gate_input, scale_and_gate


@triton.jit
def output_gradient(dy, gate, GATE_LAST: tl.constexpr):
    """dv, the gradient before the last gate; fp32."""
    dv = dy.to(tl.float32)
    if GATE_LAST:
        dv *= silu(gate.to(tl.float32))
    return dv


@triton.jit
def weighted(dv, weight, weight_offset):
    """g = dv * (weight + offset), the gradient at x_hat."""
    g = dv
    if weight is not None:
        g = dv * (weight + weight_offset)
    return g


@triton.jit
def store_row_gradients(
    dy, dsum, s, gate, weight, weight_offset, bias, x_hat, g, c, rstd,
    dx_ptr, dresidual_ptr, dgate_ptr, out, mask, GATE_FIRST: tl.constexpr, GATE_LAST: tl.constexpr,
):  # fmt: skip
    """Write dx, dresidual and dgate of a tile from g and the row means c of g * x_hat."""
    ds = rstd * (g - x_hat * c)
    if GATE_FIRST:
        z = gate.to(tl.float32)
        dgate = ds * s.to(tl.float32) * silu_grad(z)
        tl.store(dgate_ptr + out, dgate.to(dgate_ptr.dtype.element_ty), mask=mask)
        ds *= silu(z)
    if GATE_LAST:
        v = scale_and_gate(x_hat, weight, weight_offset, bias, gate, False)
        dgate = dy.to(tl.float32) * v * silu_grad(gate.to(tl.float32))
        tl.store(dgate_ptr + out, dgate.to(dgate_ptr.dtype.element_ty), mask=mask)
    if dsum is not None:
        ds += dsum.to(tl.float32)
    tl.store(dx_ptr + out, ds.to(dx_ptr.dtype.element_ty), mask=mask)
    if dresidual_ptr is not None:
        tl.store(dresidual_ptr + out, ds.to(dresidual_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def backward_whole(
    dy_ptr,
    dsum_ptr,
    s_ptr,
    gate_ptr,
    weight_ptr,
    bias_ptr,
    rstd_ptr,
    dx_ptr,
    dresidual_ptr,
    dgate_ptr,
    dweight_partial_ptr,
    dbias_partial_ptr,
    dy_strides,
    dsum_strides,
    s_strides,
    gate_strides,
    weight_head_stride,
    bias_head_stride,
    inner_dims,
    rows,
    heads,
    weight_offset,
    GATE_FIRST: tl.constexpr,
    GATE_LAST: tl.constexpr,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    AGAIN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Rows of N <= BLOCK_N columns; partial sums (programs, heads, N)."""
    wait_for_previous(OVERLAP)
    head = tl.program_id(0) % heads
    n = tl.arange(0, BLOCK_N)
    weight = load_parameter(weight_ptr, head, n, weight_head_stride, n < N, ROWS)
    bias = load_parameter(bias_ptr, head, n, bias_head_stride, n < N, ROWS)
    dweight = tl.zeros([ROWS, BLOCK_N], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK_N], tl.float32)

    program = tl.program_id(0) // heads
    programs = tl.num_programs(0) // heads
    for tile in tl.range(program, tl.cdiv(rows, ROWS), programs, num_stages=STAGES):
        m = tile * ROWS + tl.arange(0, ROWS)
        mask = tile_mask(m, rows, n, N, N == BLOCK_N)
        dy = load_tile(dy_ptr, m, head, n, inner_dims, dy_strides, mask)
        dsum = load_tile(dsum_ptr, m, head, n, inner_dims, dsum_strides, mask)
        s = load_tile(s_ptr, m, head, n, inner_dims, s_strides, mask)
        gate = load_tile(gate_ptr, m, head, n, inner_dims, gate_strides, mask)
        row = m.to(tl.int64) * heads + head
        rstd = tl.load(rstd_ptr + row, mask=m < rows, other=0.0)[:, None]

        x_hat = gate_input(s, gate, GATE_FIRST) * rstd
        dv = output_gradient(dy, gate, GATE_LAST)
        g = weighted(dv, weight, weight_offset)
        c = (tl.sum(g * x_hat, axis=1) * (1.0 / N))[:, None]
        dweight += dv * x_hat
        dbias += dv
        if AGAIN:  # made again from the packed inputs, which take half the registers
            s = forget(s)
            gate = forget(gate)
            dy = forget(dy)
            x_hat = gate_input(s, gate, GATE_FIRST) * rstd
            g = weighted(output_gradient(dy, gate, GATE_LAST), weight, weight_offset)
        store_row_gradients(
            dy, dsum, s, gate, weight, weight_offset, bias, x_hat, g, c, rstd,
            dx_ptr, dresidual_ptr, dgate_ptr, row[:, None] * N + n[None, :], mask, GATE_FIRST, GATE_LAST,
        )  # fmt: skip

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
    dy_ptr,
    s_ptr,
    gate_ptr,
    weight_ptr,
    rstd_ptr,
    c_ptr,
    dy_strides,
    s_strides,
    gate_strides,
    weight_head_stride,
    inner_dims,
    rows,
    heads,
    weight_offset,
    GATE_FIRST: tl.constexpr,
    GATE_LAST: tl.constexpr,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """c, the mean of g * x_hat over a row: one row a program, BLOCK_N columns at a time."""
    wait_for_previous(OVERLAP)
    head = tl.program_id(0) % heads
    m = tl.program_id(0) // heads + tl.arange(0, 1)
    row = m.to(tl.int64) * heads + head
    rstd = tl.load(rstd_ptr + row, mask=m < rows, other=0.0)[:, None]
    total = tl.zeros([1, BLOCK_N], tl.float32)
    for start in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        n = start + tl.arange(0, BLOCK_N)
        mask = tile_mask(m, rows, n, N, N % BLOCK_N == 0)
        dy = load_tile(dy_ptr, m, head, n, inner_dims, dy_strides, mask)
        s = load_tile(s_ptr, m, head, n, inner_dims, s_strides, mask)
        gate = load_tile(gate_ptr, m, head, n, inner_dims, gate_strides, mask)
        weight = load_parameter(weight_ptr, head, n, weight_head_stride, n < N, 1)
        x_hat = gate_input(s, gate, GATE_FIRST) * rstd
        total += weighted(output_gradient(dy, gate, GATE_LAST), weight, weight_offset) * x_hat
    let_next_start(OVERLAP)
    tl.store(c_ptr + row, tl.sum(total, axis=1) * (1.0 / N), mask=m < rows)


@triton.jit(do_not_specialize=["rows"])
def backward_columns(
    dy_ptr,
    dsum_ptr,
    s_ptr,
    gate_ptr,
    weight_ptr,
    bias_ptr,
    rstd_ptr,
    c_ptr,
    dx_ptr,
    dresidual_ptr,
    dgate_ptr,
    dweight_partial_ptr,
    dbias_partial_ptr,
    dy_strides,
    dsum_strides,
    s_strides,
    gate_strides,
    weight_head_stride,
    bias_head_stride,
    inner_dims,
    rows,
    heads,
    weight_offset,
    GATE_FIRST: tl.constexpr,
    GATE_LAST: tl.constexpr,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dx, dgate and partial sums for a block of columns, given the row means c; partial sums (programs, heads, N)."""
    wait_for_previous(OVERLAP)
    blocks: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    head = tl.program_id(0) // blocks % heads
    program = tl.program_id(0) // blocks // heads
    programs = tl.num_programs(0) // blocks // heads
    n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    weight = load_parameter(weight_ptr, head, n, weight_head_stride, n < N, ROWS)
    bias = load_parameter(bias_ptr, head, n, bias_head_stride, n < N, ROWS)
    dweight = tl.zeros([ROWS, BLOCK_N], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK_N], tl.float32)

    for tile in tl.range(program, tl.cdiv(rows, ROWS), programs, num_stages=STAGES):
        m = tile * ROWS + tl.arange(0, ROWS)
        mask = tile_mask(m, rows, n, N, N % BLOCK_N == 0)
        dy = load_tile(dy_ptr, m, head, n, inner_dims, dy_strides, mask)
        dsum = load_tile(dsum_ptr, m, head, n, inner_dims, dsum_strides, mask)
        s = load_tile(s_ptr, m, head, n, inner_dims, s_strides, mask)
        gate = load_tile(gate_ptr, m, head, n, inner_dims, gate_strides, mask)
        row = m.to(tl.int64) * heads + head
        rstd = tl.load(rstd_ptr + row, mask=m < rows, other=0.0)[:, None]
        c = tl.load(c_ptr + row, mask=m < rows, other=0.0)[:, None]

        x_hat = gate_input(s, gate, GATE_FIRST) * rstd
        dv = output_gradient(dy, gate, GATE_LAST)
        g = weighted(dv, weight, weight_offset)
        store_row_gradients(
            dy, dsum, s, gate, weight, weight_offset, bias, x_hat, g, c, rstd,
            dx_ptr, dresidual_ptr, dgate_ptr, row[:, None] * N + n[None, :], mask, GATE_FIRST, GATE_LAST,
        )  # fmt: skip
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
