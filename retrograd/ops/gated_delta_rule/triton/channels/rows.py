"""Rows of q and k with the decays of their channels, and these decays. Symbols: ../../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, load_rows, owner_of, rows_at

from ...device import fine_sums_of, log_decays, offsets_of, sums_of
from .levels import sums_at


@triton.jit(do_not_specialize=["q", "k", "g", "call"])
def channel_rows(
    q,
    k,
    g,
    cu_seqlens_ptr,
    sums_ptr,
    q_grow_ptr,
    k_grow_ptr,
    k_rest_ptr,
    call,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes a block of steps, a head and BLOCK_K channels.

    sums (slots, H, C, K), fp32: of log decays in base 2 from the block's start; behind the sequence its last. q_grow,
    k_grow, k_rest (B T, H, K): e^y q, e^y k, e^(y_end - y) k.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    K: tl.constexpr = SIZES.K
    C: tl.constexpr = SIZES.C
    BLOCK_K: tl.constexpr = SIZES.BLOCK_K
    K_BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    c = tl.program_id(0) % K_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
    head = tl.program_id(0) // K_BLOCKS % H
    slot = tl.program_id(0) // K_BLOCKS // H
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, C)
    t = step + j
    live = (t >= 0) & (t < length)
    g_rows = rows_at(g, row, first, head, SIZES.K_UNIT)
    k_rows = rows_at(k, row, first, head // (H // call.G), SIZES.K_UNIT)
    q_rows = rows_at(q, row, first, head // (H // call.G), SIZES.K_UNIT)
    log = load_rows(g_rows, t, c, live, K, SIZES.K_UNIT)
    if OPERANDS.SPLIT:
        sums = fine_sums_of(log, length - step)
    else:
        sums = sums_of(log_decays(log), length - step)
    last = tl.sum(tl.where((j == C - 1)[:, None], sums, 0.0), axis=0)[None, :]
    tl.store(sums_ptr + sums_at(slot, head, H, j, c, SIZES), sums, mask=(c < K)[None, :])
    grow = tl.exp2(sums)
    mask = live[:, None] & (c < K)[None, :]
    at = offsets_of(row * call.T + first + t, head, H, c, K)
    q_tile = load_rows(q_rows, t, c, live, K, SIZES.K_UNIT).to(tl.float32)
    tl.store(q_grow_ptr + at, (q_tile * grow).to(OPERANDS.DTYPE), mask=mask)
    k_tile = load_rows(k_rows, t, c, live, K, SIZES.K_UNIT).to(tl.float32)
    tl.store(k_grow_ptr + at, (k_tile * grow).to(OPERANDS.DTYPE), mask=mask)
    tl.store(k_rest_ptr + at, (k_tile * tl.exp2(last - sums)).to(OPERANDS.DTYPE), mask=mask)
