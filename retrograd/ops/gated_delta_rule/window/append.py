"""Writes a step's rows into the window of its sequence. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.window import copy_row, count_step


@triton.jit(do_not_specialize=["q", "k", "v", "g", "beta", "call"])
def append(
    q,
    k,
    v,
    g,
    beta,
    steps_ptr,
    window_k_ptr,
    window_v_ptr,
    window_g_ptr,
    window_beta_ptr,
    queries_ptr,
    next_ptr,
    call,
    SIZES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes BLOCK numbers of each row of a sequence, a part of `parts`; next: the steps after this one.

    Of queries (B, BORDER, G, K) only the row of the step is written: no other row of results is read.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    sequence, part = tl.program_id(0) // call.parts, tl.program_id(0) % call.parts
    steps = tl.load(steps_ptr + sequence)
    slot = tl.cast(sequence, tl.int64) * SIZES.BORDER + steps
    i = part * BLOCK + tl.arange(0, BLOCK)
    copy_row(q, sequence, i, call.G * SIZES.K, queries_ptr, slot, SIZES.K)
    copy_row(k, sequence, i, call.G * SIZES.K, window_k_ptr, slot, SIZES.K)
    copy_row(v, sequence, i, call.H * SIZES.V, window_v_ptr, slot, SIZES.V)
    copy_row(g, sequence, i, call.H * SIZES.DECAYS, window_g_ptr, slot, SIZES.DECAYS)
    copy_row(beta, sequence, i, call.H, window_beta_ptr, slot, 1)
    if part == 0:
        count_step(steps, sequence, next_ptr, SIZES.BORDER)
