"""Attention, backward in one loop: a program owns a tile of keys, and adds its part of dq when it is its turn."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .backward import add_up_keys
from .pairs import clear_gaps, sequence_of, store_steps, tiles_of


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
    SIDES: tl.constexpr,
    FACTORS: tl.constexpr,
    SCALE: tl.constexpr,
    DROPPED: tl.constexpr,
    SHARE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BIAS: tl.constexpr,
    IN_PTX: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dk and dv of a tile of keys; dq_sum (batch, queries, heads, D) fp32, without its factor, is 0 at first.

    turns (batch, heads, tiles of queries), 0 at first: how many tiles of keys have added to a tile of dq_sum. They add
    in their order. A program has a higher number than those that it waits for, so these have begun.

    DESCRIBED: q and dout are tensor descriptors.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    Tq, Tk, heads, _share, sequences = sizes
    groups = heads // SHARE
    tiles_k = tiles_of(cu_k_ptr, Tk, sequences, BLOCK_K)
    tiles_q = tiles_of(cu_q_ptr, Tq, sequences, BLOCK_Q)
    # The tiles of a head are far apart, so that few programs have to wait.
    rows = tl.num_programs(0) // tiles_k
    tile, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    batch, group = row // groups, row % groups
    number, first_k, keys, first_q, queries, at = sequence_of(
        cu_k_ptr, cu_q_ptr, tile, batch, Tk, Tq, sequences, BLOCK_K
    )
    first_tile = 0 if cu_q_ptr is None else first_q // BLOCK_Q + number  # of the sequence's queries
    clear_gaps(dk, cu_k_ptr, Tk, sequences, tile, group, COLUMNS[0], COLUMNS[2], BLOCK_K)
    clear_gaps(dv, cu_k_ptr, Tk, sequences, tile, group, COLUMNS[1], COLUMNS[3], BLOCK_K)
    own = batch, group, tile, number, first_q, queries, first_k, keys, at
    add_up_keys(
        q, k, v, bias, slopes, seed_ptr, base, dout, delta, dk, dv, sizes, own, SIDES, FACTORS, SCALE, DROPPED, SHARE,
        COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS, False, (dq_sum_ptr, turns_ptr, first_tile, tiles_q), IN_PTX,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def finish(
    dq_sum_ptr, dq, rows, heads, SCALE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
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
