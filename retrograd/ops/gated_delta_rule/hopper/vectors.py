"""Sums of log decays of a block, and what products are multiplied by. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, rows_at
from retrograd.core.kernels.warpgroups import in_column_order

from ..device import log_decays
from ..heads import block_of


@triton.jit(do_not_specialize=["g", "beta", "call"])
def vectors(
    g,
    beta,
    cu_seqlens_ptr,
    vectors_ptr,
    planes_ptr,
    call,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes a block of C steps and HEADS heads.

    vectors (slots, H, 2, C): y, in base 2, and beta, which is 0 outside of the sequence. planes (slots, H, 4, C), in
    column order: beta e^(y_end - y); e^y; scale e^y; y.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    block = block_of(sequences, H, C, HEADS)
    head, live = block.head, block.live
    j = tl.arange(0, C)
    g_rows = rows_at(g, block.row, block.first, 0, 1)
    beta_rows = rows_at(beta, block.row, block.first, 0, 1)
    at = block.t.to(tl.int64)[:, None]
    log = log_decays(tl.load(g_rows.pointer + at * g.step + head[None, :] * g.head, mask=live, other=0.0))
    rate = tl.load(beta_rows.pointer + at * beta.step + head[None, :] * beta.head, mask=live, other=0.0)
    rate = rate.to(tl.float32)
    # After the sequence's last step its own sum, to the bit: a parallel sum rounds otherwise there.
    sums = tl.cumsum(log, axis=0)
    count = block.length - block.step
    last = tl.sum(tl.where((j == count - 1)[:, None], sums, 0.0), axis=0)[None, :]
    sums = tl.where((j < count)[:, None], sums, last)
    end = tl.sum(tl.where((j == C - 1)[:, None], sums, 0.0), axis=0)[None, :]
    of_head = tl.cast(block.slot, tl.int64) * H + head
    in_array = (head < H)[None, :]
    at = (of_head * (2 * C))[None, :] + j[:, None]
    tl.store(vectors_ptr + at, sums, mask=in_array)
    tl.store(vectors_ptr + at + C, rate, mask=in_array)
    in_array = (head < H)[:, None]
    at = (of_head * (4 * C))[:, None] + j[None, :]
    grow = tl.exp2(sums)
    tl.store(planes_ptr + at, in_column_order(rate * tl.exp2(end - sums)), mask=in_array)
    tl.store(planes_ptr + at + C, in_column_order(grow), mask=in_array)
    tl.store(planes_ptr + at + 2 * C, in_column_order(grow * call.scale), mask=in_array)
    tl.store(planes_ptr + at + 3 * C, in_column_order(sums), mask=in_array)
