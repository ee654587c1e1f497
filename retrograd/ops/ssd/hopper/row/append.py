"""Writes a step's rows of x, B and dt into the window of its sequence. Symbols: ../../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.window import copy_row, count_step


@triton.jit(do_not_specialize=["x", "B", "dt"])
def append(
    x,
    B,
    dt,
    steps_ptr,
    window_x_ptr,
    window_B_ptr,
    window_dt_ptr,
    next_ptr,
    groups,
    parts,
    SIZES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes BLOCK numbers of each row of a sequence, a part of `parts`; next: the steps after this one."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    Q: tl.constexpr = SIZES.Q
    sequence, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    steps = tl.load(steps_ptr + sequence)
    slot = tl.cast(sequence, tl.int64) * Q + steps
    i = part * BLOCK + tl.arange(0, BLOCK)
    copy_row(x, sequence, i, groups.H * SIZES.P, window_x_ptr, slot, SIZES.P)
    copy_row(B, sequence, i, groups.G * SIZES.N, window_B_ptr, slot, SIZES.N)
    copy_row(dt, sequence, i, groups.H, window_dt_ptr, slot, 1)
    if part == 0:
        count_step(steps, sequence, next_ptr, Q)
