"""Attention, backward: sums of what tiles have of a gradient, in a fixed order."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous


@triton.jit(do_not_specialize=["tiles", "sequences"])
def sum_tiles(
    partial_ptr,
    cu_q_ptr,
    runs_ptr,
    out_ptr,
    tiles,
    sequences,
    heads,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_H: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out (sequences, heads): sums over the tiles of each sequence; of `tiles` in each row, where none are packed.

    With runs (see `runs`) each of them has another tile.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    blocks = tl.cdiv(heads, BLOCK_H)
    number = tl.program_id(0) // blocks
    head = tl.program_id(0) % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    first, count = number * tiles, tiles
    if runs_ptr is not None:
        count += tl.load(runs_ptr)
    if cu_q_ptr is not None:
        start, end = tl.load(cu_q_ptr + number), tl.load(cu_q_ptr + number + 1)
        first, count = start // BLOCK + number, tl.cdiv(end - start, BLOCK)
    total = tl.zeros([TILES, BLOCK_H], tl.float32)
    for begin in range(0, count, TILES):
        tile = begin + tl.arange(0, TILES)
        mask = (tile < count)[:, None] & (head < heads)[None, :]
        total += tl.load(partial_ptr + (first + tile)[:, None] * heads + head[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + number * heads + head, tl.sum(total, axis=0), mask=head < heads)
