"""Sums in a fixed order across programs: the second stage of every parameter gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from .program import Launch

# 16 columns of fp32 are two 32-byte sectors; the tile is loaded at once, so its latency is paid once.
COLUMNS = 16
TILE_ROWS = 256


@triton.jit
def sum_columns(partial_ptr, out_ptr, rows, columns, stride, c, TILE_ROWS: tl.constexpr):
    """out[c] = sum over r of partial[r * stride + c], rows taken TILE_ROWS at a time."""
    total = tl.zeros([TILE_ROWS, c.shape[0]], tl.float32)
    for start in range(0, rows, TILE_ROWS):
        r = start + tl.arange(0, TILE_ROWS)
        mask = (r < rows)[:, None] & (c < columns)[None, :]
        total += tl.load(
            partial_ptr + r.to(tl.int64)[:, None] * stride + c[None, :], mask=mask, other=0.0, cache_modifier=".cg"
        )
    tl.store(out_ptr + c, tl.sum(total, axis=0).to(out_ptr.dtype.element_ty), mask=c < columns)


@triton.jit
def sum_rows(
    partial_ptr,
    out_ptr,
    rows,
    columns,
    TILE_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out[c] = sum over r of partial[r, c]: one program for COLUMNS columns."""
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sum_columns(partial_ptr, out_ptr, rows, columns, columns, c, TILE_ROWS)


@triton.jit
def is_last(arrivals_ptr, programs):
    """Whether this program is the last of `programs` to get here; the counter is left at zero for the next launch.

    What every program stored before the call can be read by the last one after it: the barrier orders a program's own
    stores before its arrival, and the counter's acquire and release order them across programs.
    """
    tl.debug_barrier()
    last = tl.atomic_add(arrivals_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.store(arrivals_ptr, 0)
    return last


def sum_rows_launch(partial: str, out: str, rows: int, columns: int) -> Launch:
    """Reduce the array `partial` (rows, columns), fp32, to `out` (columns,) in the dtype of `out`."""
    tile_rows = min(TILE_ROWS, max(16, 1 << (rows - 1).bit_length()))
    return Launch(
        sum_rows,
        grid=-(-columns // COLUMNS),
        arrays={"partial_ptr": partial, "out_ptr": out},
        scalars={"rows": rows, "columns": columns},
        constants={"TILE_ROWS": tile_rows, "COLUMNS": COLUMNS},
        num_warps=4,
    )
