"""Sums in a fixed order across programs: the second stage of every parameter gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from .arch import Arch
from .numerics import let_next_start, wait_for_previous
from .program import Launch
from .tiles import power_of_two

# 8 columns of fp32 are one 32-byte sector; all rows are asked for at once, so their latency is paid once.
COLUMNS = 8
TILE_ROWS = 1024


@triton.jit
def sum_rows(
    partial_ptr,
    out_ptr,
    rows,
    columns,
    TILE_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out[c] = sum over r of partial[r, c]: one program for COLUMNS columns, rows taken TILE_ROWS at a time."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([TILE_ROWS, COLUMNS], tl.float32)
    for start in range(0, rows, TILE_ROWS):
        r = start + tl.arange(0, TILE_ROWS)
        mask = (r < rows)[:, None] & (c < columns)[None, :]
        total += tl.load(partial_ptr + r.to(tl.int64)[:, None] * columns + c[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + c, tl.sum(total, axis=0).to(out_ptr.dtype.element_ty), mask=c < columns)


def sum_rows_launch(partial: str, out: str, rows: int, columns: int, arch: Arch) -> Launch:
    """Reduce the array `partial` (rows, columns), fp32, to `out` (columns,) in the dtype of `out`."""
    tile_rows = min(TILE_ROWS, max(16, power_of_two(rows)))
    return Launch(
        sum_rows,
        grid=-(-columns // COLUMNS),
        arrays={"partial_ptr": partial, "out_ptr": out},
        scalars={"rows": rows, "columns": columns},
        constants={"TILE_ROWS": tile_rows, "COLUMNS": COLUMNS, "OVERLAP": arch.overlaps_launches},
        num_warps=4,
        overlap=arch.overlaps_launches,
    )
