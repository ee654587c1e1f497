"""Attention, backward in one loop: a program owns a tile of keys, and adds its part of dq when it is its turn."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..device import store_steps
from .backward import add_up_keys
from .pairs import clear_gaps, tiles_of, work_on_keys
from .tuples import Incoming, Inputs, Turns


@triton.jit(do_not_specialize=["sizes"])
def fused_backward(
    q,
    k,
    v,
    bias,
    slopes,
    seed_ptr,
    cu_q_ptr,
    cu_k_ptr,
    base,
    dout,
    delta,
    dk,
    dv,
    dq_sum_ptr,
    turns_ptr,
    sizes,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    IN_PTX: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dk and dv of a tile of keys; dq_sum (batch, queries, heads, D) fp32, without its factor, is 0 at first.

    turns (batch, heads, tiles of queries), 0 at first: how many tiles of keys have added to a tile of dq_sum. They add
    in their order. A program has a higher number than those that it waits for, so these have started.

    TILES.described: q and dout are tensor descriptors.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    groups = sizes.heads // TILES.heads
    tiles_k = tiles_of(cu_k_ptr, sizes.keys, sizes.sequences, TILES.keys)
    tiles_q = tiles_of(cu_q_ptr, sizes.queries, sizes.sequences, TILES.queries)
    # The tiles of a head are far apart, so that few programs have to wait.
    rows = tl.num_programs(0) // tiles_k
    tile, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    batch, group = row // groups, row % groups
    work = work_on_keys(cu_q_ptr, cu_k_ptr, batch, group, tile, sizes, TILES.keys)
    first_tile = 0 if cu_q_ptr is None else work.sequence.first_q // TILES.queries + work.sequence.number
    clear_gaps(dk, cu_k_ptr, sizes.keys, sizes.sequences, tile, group, TILES.D, TILES.BLOCK_D, TILES.keys)
    clear_gaps(dv, cu_k_ptr, sizes.keys, sizes.sequences, tile, group, TILES.V, TILES.BLOCK_V, TILES.keys)
    inputs, incoming = Inputs(q, k, v, bias, slopes, seed_ptr), Incoming(base, dout, delta)
    turns = Turns(dq_sum_ptr, turns_ptr, first_tile, tiles_q)
    add_up_keys(inputs, incoming, dk, dv, sizes, work, turns, SCORES, TILES, IN_PTX)


@triton.jit(do_not_specialize=["rows"])
def round_dq(
    dq_sum_ptr,
    dq,
    rows,
    heads,
    SCALE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dq from the sums; `rows` are queries."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    tiles = tl.cdiv(rows, BLOCK)
    row = tl.program_id(0) // tiles
    batch, head = row // heads, row % heads
    i = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCK_D)
    sums = dq_sum_ptr + ((tl.cast(batch, tl.int64) * rows + i)[:, None] * heads + head) * D + column[None, :]
    total = tl.load(sums, mask=(i < rows)[:, None] & (column < D)[None, :], other=0.0)
    store_steps(dq, total * SCALE, batch, 0, i, rows, head, column, D)
