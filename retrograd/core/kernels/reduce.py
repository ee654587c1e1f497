"""Sums in a fixed order across programs: the second stage of every parameter gradient."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import next_power_of_2

from ..arch import Arch
from ..program import Launch
from .numerics import let_next_start, wait_for_previous

# 8 columns of fp32 are one 32-byte sector; all rows are asked for at once, so their latency is paid once.
COLUMNS = 8
TILE_ROWS = 1024
# Of sums over blocks: how many are asked for at once, for how many steps, at most; and elements in all, about.
BLOCKS = 16
TILE_STEPS = 16
ELEMENTS = 4096
IN_ORDER = 1024  # elements of a program that sums one row after the other


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
    tile_rows = min(TILE_ROWS, max(16, next_power_of_2(rows)))
    return Launch(
        sum_rows,
        grid=-(-columns // COLUMNS),
        arrays={"partial_ptr": partial, "out_ptr": out},
        scalars={"rows": rows, "columns": columns},
        constants={"TILE_ROWS": tile_rows, "COLUMNS": COLUMNS, "OVERLAP": arch.overlaps_launches},
        num_warps=4,
        overlap=arch.overlaps_launches,
    )


@triton.jit(do_not_specialize=["rows"])
def sum_blocks(
    partial_ptr,
    out_ptr,
    rows,
    groups,
    blocks_a_group,
    part,
    parts,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out[r, g, n] = sum over the blocks b of group g of partial[r, b, part, n], BLOCKS of them at a time."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    group = tl.program_id(0) % groups
    r = tl.program_id(0) // groups * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, BLOCK_N)
    b = tl.arange(0, BLOCKS)
    total = tl.zeros([ROWS, BLOCKS, BLOCK_N], tl.float32)
    at = r.to(tl.int64)[:, None] * (groups * blocks_a_group) + group * blocks_a_group + b[None, :]
    for first in range(0, blocks_a_group, BLOCKS):
        mask = ((r < rows)[:, None] & (first + b < blocks_a_group)[None, :])[:, :, None] & (n < N)[None, None, :]
        offsets = (((at + first) * parts + part) * N)[:, :, None] + n[None, None, :]
        total += tl.load(partial_ptr + offsets, mask=mask, other=0.0)
    out = (r.to(tl.int64) * groups + group)[:, None] * N + n[None, :]
    mask = (r < rows)[:, None] & (n < N)[None, :]
    tl.store(out_ptr + out, tl.sum(total, axis=1).to(out_ptr.dtype.element_ty), mask=mask)


def sum_blocks_launch(
    partial: str, out: str, rows: int, groups: int, blocks: int, N: int, arch: Arch, part: int = 0, parts: int = 1
) -> Launch:
    """Reduce the array `partial` (rows, groups, blocks, parts, N), fp32, at `part`, to `out` (rows, groups, N)."""
    at_once = min(BLOCKS, next_power_of_2(max(blocks, 1)))
    tile_rows = max(1, min(TILE_STEPS, ELEMENTS // (at_once * next_power_of_2(N))))
    return Launch(
        sum_blocks,
        grid=-(-rows // tile_rows) * groups,
        arrays={"partial_ptr": partial, "out_ptr": out},
        scalars={"rows": rows, "groups": groups, "blocks_a_group": blocks, "part": part, "parts": parts},
        constants={
            "N": N,
            "BLOCK_N": next_power_of_2(N),
            "ROWS": tile_rows,
            "BLOCKS": at_once,
            "OVERLAP": arch.overlaps_launches,
        },
        num_warps=4,
        overlap=arch.overlaps_launches,
    )


@triton.jit(do_not_specialize=["rows", "columns"])
def sum_in_order(
    partial_ptr,
    out_ptr,
    rows,
    columns,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out[c] = sum over r of partial[r, c], one row after the other, whatever their number."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for r in range(rows):
        total += tl.load(partial_ptr + tl.cast(r, tl.int64) * columns + c, mask=c < columns, other=0.0)
    tl.store(out_ptr + c, total.to(out_ptr.dtype.element_ty), mask=c < columns)


def sum_in_order_launch(partial: str, out: str, rows: int, columns: int, arch: Arch) -> Launch:
    """Reduce the array `partial` (rows, columns), fp32, of few rows and many columns, to `out` (columns,)."""
    return Launch(
        sum_in_order,
        grid=-(-columns // IN_ORDER),
        arrays={"partial_ptr": partial, "out_ptr": out},
        scalars={"rows": rows, "columns": columns},
        constants={"BLOCK": IN_ORDER, "OVERLAP": arch.overlaps_launches},
        num_warps=IN_ORDER // (4 * arch.warp_size),
        overlap=arch.overlaps_launches,
    )
