"""Products of matrices whose elements are one sum in order, on any GPU. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..device import tile_at


@triton.jit(do_not_specialize=["M"])
def product(
    a,
    b,
    bias_ptr,
    out_ptr,
    M,
    other,
    columns,
    parts,
    TILES: tl.constexpr,
    SUMS_ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out[i, j] = sum over r of a[i, r] b[j, r], plus bias[j]; a program takes a tile, and one part of its sums.

    M rows of the result, and `other` terms of a sum; with SUMS_ROWS `other` rows, and M terms. What is known of M may
    not decide the binary, and what is known of the others decides how wide the loads are.
    out: (parts, rows, columns); float32 where there are several parts.
    """
    ROWS: tl.constexpr = TILES.ROWS
    COLUMNS: tl.constexpr = TILES.COLUMNS
    TERMS: tl.constexpr = TILES.TERMS
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    rows = other if SUMS_ROWS else M
    terms = M if SUMS_ROWS else other
    tiles_down = tl.cdiv(rows, ROWS)
    tiles_across = tl.cdiv(columns, COLUMNS)
    part = tl.program_id(0) // (tiles_down * tiles_across)
    row, column = tile_at(tl.program_id(0) % (tiles_down * tiles_across), tiles_down, tiles_across, TILES.GROUP)
    i = row * ROWS + tl.arange(0, ROWS)
    j = column * COLUMNS + tl.arange(0, COLUMNS)
    r = tl.arange(0, TERMS)
    in_rows = (i < rows)[:, None]
    in_columns = (j < columns)[None, :]
    part_steps = tl.cdiv(tl.cdiv(terms, TERMS), parts)
    first = part * part_steps
    last = tl.minimum(first + part_steps, tl.cdiv(terms, TERMS))
    a_at = a.pointer + i.to(tl.int64)[:, None] * a.row + r.to(tl.int64)[None, :] * a.column
    b_at = b.pointer + j.to(tl.int64)[None, :] * b.row + r.to(tl.int64)[:, None] * b.column
    a_step = tl.cast(a.column, tl.int64) * TERMS
    b_step = tl.cast(b.column, tl.int64) * TERMS
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(first, last):
        live = r < terms - step * TERMS
        a_tile = tl.load(a_at + step * a_step, mask=in_rows & live[None, :], other=0.0)
        b_tile = tl.load(b_at + step * b_step, mask=in_columns & live[:, None], other=0.0)
        if a_tile.dtype == tl.float32:
            # Added by themselves first: long sums lose less. A plain `+` would be taken into the product.
            total = tl.fma(tl.dot(a_tile, b_tile, input_precision="ieee"), 1.0, total)
        else:
            total = tl.dot(a_tile, b_tile, total)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + j, mask=j < columns, other=0.0).to(tl.float32)[None, :]
    at = (part.to(tl.int64) * rows + i)[:, None] * columns + j[None, :]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=in_rows & in_columns)
