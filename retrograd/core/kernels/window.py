"""What kernels of a step do with a window: write its rows, count it, and take its results out (`core/window.py`)."""

import triton
import triton.language as tl

from .numerics import let_next_start, wait_for_previous


@triton.jit
def copy_row(row, sequence, i, count, out_ptr, slot, COLUMNS: tl.constexpr):
    """Those of the `count` numbers i of a sequence's row that exist, to a slot of an array (slots, count)."""
    at = tl.cast(sequence, tl.int64) * row.batch + (i // COLUMNS) * row.head + i % COLUMNS
    there = i < count
    tl.store(out_ptr + slot * count + i, tl.load(row.pointer + at, mask=there), mask=there)


@triton.jit
def count_step(steps, sequence, next_ptr, BORDER: tl.constexpr):
    """Writes the steps since the border, after this one."""
    tl.store(next_ptr + sequence, tl.where(steps == BORDER - 1, 0, steps + 1))


@triton.jit
def take_row(
    steps_ptr,
    rows_ptr,
    last_ptr,
    state_ptr,
    row_ptr,
    sizes,
    BORDER: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """row (B, numbers of a row): the newest of `rows` (B, BORDER, same); at a border `last` becomes the state.

    A program takes BLOCK numbers of a sequence's row and of its state, a part of `parts`.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    sequence = tl.cast(tl.program_id(0) // sizes.parts, tl.int64)
    i = tl.program_id(0) % sizes.parts * BLOCK + tl.arange(0, BLOCK)
    steps = tl.load(steps_ptr + sequence)
    there = i < sizes.row
    found = tl.load(rows_ptr + (sequence * BORDER + steps) * sizes.row + i, mask=there)
    if steps == BORDER - 1:
        in_state = i < sizes.state
        at = sequence * sizes.state + i
        tl.store(state_ptr + at, tl.load(last_ptr + at, mask=in_state), mask=in_state)
    tl.store(row_ptr + sequence * sizes.row + i, found, mask=there)
