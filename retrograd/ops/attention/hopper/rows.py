"""Attention, backward, on Hopper: what comes before and after the walk, in tiles of queries. Symbols: ../README.md.

Numbers of queries are kept tile by tile, (heads of all rows, tiles, 64), so that a copy of those of a tile begins on a
boundary of 16 bytes at any length.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, let_next_start, pairwise_sum, wait_for_previous

from ..triton.pairs import clear_gaps, load_row, load_steps, sequence_of, store_steps


@triton.jit
def tile_of_program(cu_q_ptr, sizes, BLOCK: tl.constexpr):
    """Batch, head and tile; first step and number of its sequence's queries; its own first query."""
    Tq, heads, tiles, sequences = sizes
    row, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    batch = row // heads
    _number, first, queries, _first_k, _keys, at = sequence_of(
        cu_q_ptr, cu_q_ptr, tile, batch, Tq, Tq, sequences, BLOCK
    )
    return batch, row % heads, tile, first, queries, at


@triton.jit(do_not_specialize=["sizes"])
def prepare(
    out,
    dout,
    lse,
    dlse,
    sinks,
    cu_q_ptr,
    base_ptr,
    delta_ptr,
    dsinks_ptr,
    sizes,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """delta; and base, lse in powers of two, inf for steps that are none or see nothing: probabilities are then 0.

    dsinks (rows, tiles, heads): parts of the gradient of sinks. sizes: Tq, heads, tiles of a head, sequences.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    _Tq, heads, tiles, _sequences = sizes
    batch, head, tile, first, queries, at = tile_of_program(cu_q_ptr, sizes, BLOCK)
    i, column = at + tl.arange(0, BLOCK), tl.arange(0, BLOCK_V)
    result = load_steps(out, batch, first, i, queries, head, column, V, BLOCK_V).to(tl.float32)
    incoming = load_steps(dout, batch, first, i, queries, head, column, V, BLOCK_V).to(tl.float32)
    delta = pairwise_sum(result * incoming)
    if dlse.pointer is not None:
        delta -= load_row(dlse, batch, first, i, queries, head)
    logarithm = load_row(lse, batch, first, i, queries, head)
    live = (i >= 0) & (i < queries) & (logarithm != float("-inf"))
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(base_ptr + place, tl.where(live, logarithm * LOG2E, float("inf")))
    tl.store(delta_ptr + place, tl.where(live, delta, 0.0))
    if dsinks_ptr is not None:
        sink = tl.load(sinks.pointer + head * sinks.head)
        part = tl.where(live, tl.exp(sink - logarithm) * delta, 0.0)
        tl.store(dsinks_ptr + (batch * tiles + tile) * heads + head, -tl.sum(part, axis=0))


@triton.jit(do_not_specialize=["sizes"])
def finish(
    dq_sum_ptr,
    turns_ptr,
    cu_q_ptr,
    dq,
    sizes,
    SCALE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dq from its sums; zeros where no tile of keys has added to a tile. sizes: as `prepare`."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    Tq, _heads, _tiles, sequences = sizes
    batch, head, tile, first, queries, at = tile_of_program(cu_q_ptr, sizes, BLOCK)
    clear_gaps(dq, cu_q_ptr, Tq, sequences, tile, head, D, BLOCK_D, BLOCK)
    i, column = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    sums = dq_sum_ptr + (tl.program_id(0).to(tl.int64) * BLOCK + i)[:, None] * BLOCK_D + column[None, :]
    there = tl.load(turns_ptr + tl.program_id(0)) > 0
    total = tl.load(sums, mask=there & (column < D)[None, :], other=0.0)
    store_steps(dq, total * SCALE, batch, first, at + i, queries, head, column, D)
