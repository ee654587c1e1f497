"""RMSNorm in Triton four times, from naive to fast. docs/annotated/from_naive.md explains what each step buys.

y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps). With x_hat = x * rstd and g = dy * w, the gradients are
dx = rstd * (g - x_hat * mean(g * x_hat)) and dw = sum over the rows of dy * x_hat.

x, dy (M, N) are contiguous, w (N,) is float32, and the arithmetic is float32. On a CPU: TRITON_INTERPRET=1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

EPS = 1e-6


# 1. Every line of the formula is a kernel of its own.


@triton.jit
def rstd_of_rows(x, rstd, N, eps, BLOCK: tl.constexpr):
    """The factor of each row; a program has one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(x + row * N + column, column < N, 0.0).to(tl.float32)
    tl.store(rstd + row, 1 / tl.sqrt(tl.sum(value * value) / N + eps))


@triton.jit
def scale(x, w, rstd, y, N, BLOCK: tl.constexpr):
    """y, from the factors."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(x + row * N + column, column < N, 0.0).to(tl.float32)
    weight = tl.load(w + column, column < N, 0.0)
    tl.store(y + row * N + column, value * tl.load(rstd + row) * weight, column < N)


@triton.jit
def means_of_rows(dy, x, w, rstd, c, N, BLOCK: tl.constexpr):
    """mean(g * x_hat) of each row."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x_hat = tl.load(x + row * N + column, column < N, 0.0).to(tl.float32) * tl.load(rstd + row)
    g = tl.load(dy + row * N + column, column < N, 0.0).to(tl.float32) * tl.load(w + column, column < N, 0.0)
    tl.store(c + row, tl.sum(g * x_hat) / N)


@triton.jit
def dx_of_rows(dy, x, w, rstd, c, dx, N, BLOCK: tl.constexpr):
    """dx, from the means."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x_hat = tl.load(x + row * N + column, column < N, 0.0).to(tl.float32) * tl.load(rstd + row)
    g = tl.load(dy + row * N + column, column < N, 0.0).to(tl.float32) * tl.load(w + column, column < N, 0.0)
    tl.store(dx + row * N + column, tl.load(rstd + row) * (g - x_hat * tl.load(c + row)), column < N)


@triton.jit
def dw_of_columns(dy, x, rstd, dw, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """dw; a program has some columns, and all rows of them."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, M, ROWS):
        row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)
        inside = (row < M) & (column < N)
        x_hat = tl.load(x + row * N + column, inside, 0.0).to(tl.float32) * tl.load(rstd + row, row < M, 0.0)
        total += tl.load(dy + row * N + column, inside, 0.0).to(tl.float32) * x_hat
    tl.store(dw + column, tl.sum(total, 0)[None, :], column < N)


def forward_by_line(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """y and rstd, in two launches."""
    (M, N), y, rstd = x.shape, torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)
    rstd_of_rows[(M,)](x, rstd, N, EPS, triton.next_power_of_2(N))
    scale[(M,)](x, w, rstd, y, N, triton.next_power_of_2(N))
    return y, rstd


def backward_by_line(dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """dx and dw, in three launches."""
    (M, N), dx, dw, c = x.shape, torch.empty_like(x), torch.empty_like(w), torch.empty_like(rstd)
    means_of_rows[(M,)](dy, x, w, rstd, c, N, triton.next_power_of_2(N))
    dx_of_rows[(M,)](dy, x, w, rstd, c, dx, N, triton.next_power_of_2(N))
    dw_of_columns[(triton.cdiv(N, 64),)](dy, x, rstd, dw, M, N, ROWS=32, COLUMNS=64)
    return dx, dw


# 2. A row is read once: what a program has loaded stays in its registers.


@triton.jit
def forward_row(x, w, y, rstd, N, eps, BLOCK: tl.constexpr):
    """y and the factor of one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(x + row * N + column, column < N, 0.0).to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(value * value) / N + eps)
    tl.store(rstd + row, factor)
    tl.store(y + row * N + column, value * factor * tl.load(w + column, column < N, 0.0), column < N)


@triton.jit
def gradients(dy, x, weight, factor, N):
    """dx, and the terms of dw, of one row or of several."""
    x_hat, dy = x.to(tl.float32) * factor, dy.to(tl.float32)
    g = dy * weight
    mean = tl.sum(g * x_hat, -1, keep_dims=True) / N
    return factor * (g - x_hat * mean), dy * x_hat


@triton.jit
def backward_row(dy, x, w, rstd, dx, dw, N, BLOCK: tl.constexpr):
    """dx of one row, whose terms are added to dw by atomic additions."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < N
    place, weight = row * N + column, tl.load(w + column, inside, 0.0)
    d, terms = gradients(
        tl.load(dy + place, inside, 0.0), tl.load(x + place, inside, 0.0), weight, tl.load(rstd + row), N
    )
    tl.store(dx + place, d, inside)
    tl.atomic_add(dw + column, terms, inside)


def forward_by_row(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """y and rstd, in one launch."""
    (M, N), y, rstd = x.shape, torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)
    forward_row[(M,)](x, w, y, rstd, N, EPS, triton.next_power_of_2(N))
    return y, rstd


def backward_by_row(dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """dx, and dw with other bits in every run: atomic additions come in any order."""
    (M, N), dx, dw = x.shape, torch.empty_like(x), torch.zeros_like(w)
    backward_row[(M,)](dy, x, w, rstd, dx, dw, N, triton.next_power_of_2(N))
    return dx, dw


# 3. A program has many rows, and its sum of dw in registers: as many partial sums as programs, in a fixed order.


@triton.jit
def backward_rows(dy, x, w, rstd, dx, partial, M, N, BLOCK: tl.constexpr):
    """dx of every P-th row of P programs, and the sum of their terms of dw."""
    program, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < N
    weight = tl.load(w + column, inside, 0.0)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, M, tl.num_programs(0)):
        place = tl.cast(row, tl.int64) * N + column
        d, terms = gradients(
            tl.load(dy + place, inside, 0.0), tl.load(x + place, inside, 0.0), weight, tl.load(rstd + row), N
        )
        tl.store(dx + place, d, inside)
        total += terms
    tl.store(partial + program * N + column, total, inside)


@triton.jit
def sum_partial(partial, dw, P, N, COLUMNS: tl.constexpr):
    """dw from the sums of P programs, added in the order of their numbers."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for program in range(P):
        total += tl.load(partial + program * N + column, column < N, 0.0)
    tl.store(dw + column, total, column < N)


def backward_by_program(dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """dx and dw, in two launches."""
    (M, N), dx, dw, P = x.shape, torch.empty_like(x), torch.empty_like(w), min(len(x), 2 * processors(x))
    partial = w.new_empty(P, N)
    backward_rows[(P,)](dy, x, w, rstd, dx, partial, M, N, triton.next_power_of_2(N), num_warps=8)
    sum_partial[(triton.cdiv(N, 32),)](partial, dw, P, N, COLUMNS=32, num_warps=1)
    return dx, dw


# 4. The next rows are on their way while one is computed, and a program has enough bytes in flight.


@triton.jit
def forward_tile(x, w, y, rstd, M, N, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """As forward_row, of several rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < M) & (column < N)
    value = tl.load(x + row * N + column, inside, 0.0).to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(value * value, 1, keep_dims=True) / N + eps)
    tl.store(rstd + row, factor, row < M)
    tl.store(y + row * N + column, value * factor * tl.load(w + column, column < N, 0.0), inside)


@triton.jit
def backward_tiles(
    dy, x, w, rstd, dx, partial, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr
):  # fmt: skip
    """As backward_rows, of several rows at a time, with so many copies to shared memory under way."""
    program, column = tl.program_id(0), tl.arange(0, BLOCK)[None, :]
    weight = tl.load(w + column, column < N, 0.0)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(program, tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=AHEAD):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < M) & (column < N)
        place = row * N + column
        factor = tl.load(rstd + row, row < M, 0.0)
        d, terms = gradients(tl.load(dy + place, inside, 0.0), tl.load(x + place, inside, 0.0), weight, factor, N)
        tl.store(dx + place, d, inside)
        total += terms
    tl.store(partial + program * N + column, tl.sum(total, 0)[None, :], column < N)


def tile_of(N: int) -> tuple[int, int]:
    """Rows and columns that 8 warps hold in registers."""
    block = triton.next_power_of_2(N)
    return max(1, 8192 // block), block


def forward_ahead(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """y and rstd, in one launch."""
    (M, N), y, rstd = x.shape, torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)
    rows, block = tile_of(N)
    forward_tile[(triton.cdiv(M, rows),)](x, w, y, rstd, M, N, EPS, rows, block, num_warps=8)
    return y, rstd


def backward_ahead(dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """dx and dw, in two launches."""
    (M, N), dx, dw = x.shape, torch.empty_like(x), torch.empty_like(w)
    rows, block = tile_of(N)
    P = min(triton.cdiv(M, rows), processors(x))
    partial = w.new_empty(P, N)
    backward_tiles[(P,)](dy, x, w, rstd, dx, partial, M, N, rows, block, AHEAD=3, num_warps=8)
    sum_partial[(triton.cdiv(N, 32),)](partial, dw, P, N, COLUMNS=32, num_warps=1)
    return dx, dw


def processors(x: Tensor) -> int:
    """The number of streaming multiprocessors; of a CPU, a few."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 3


class Step(NamedTuple):
    """One of the four: forward(x, w) gives y and rstd; backward(dy, x, w, rstd) gives dx and dw."""

    forward: Any
    backward: Any


STEPS = {
    "1. a kernel a line": Step(forward_by_line, backward_by_line),
    "2. a row is read once": Step(forward_by_row, backward_by_row),
    "3. many rows a program": Step(forward_by_row, backward_by_program),
    "4. loads ahead": Step(forward_ahead, backward_ahead),
}
