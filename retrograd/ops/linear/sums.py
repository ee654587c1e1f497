"""Sums over rows, in parts: the gradient of a bias."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, pairwise_sum, wait_for_previous


@triton.jit(do_not_specialize=["rows"])
def column_sums(a, partial_ptr, rows, columns, TILE_ROWS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr):
    """partial[p, j] = sum of a[i, j] over every parts-th tile of TILE_ROWS rows; a program takes COLUMNS columns."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    across = tl.cdiv(columns, COLUMNS)
    part = tl.program_id(0) // across
    parts = tl.num_programs(0) // across
    j = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([TILE_ROWS, COLUMNS], tl.float32)
    for first in range(part * TILE_ROWS, rows, parts * TILE_ROWS):
        i = first + tl.arange(0, TILE_ROWS)
        at = i.to(tl.int64)[:, None] * a.row + j.to(tl.int64)[None, :] * a.column
        total += tl.load(a.pointer + at, mask=(i < rows)[:, None] & (j < columns)[None, :], other=0.0).to(tl.float32)
    tl.store(partial_ptr + part.to(tl.int64) * columns + j, pairwise_sum(tl.trans(total)), mask=j < columns)
