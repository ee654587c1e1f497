"""Linear scan, forward. Symbols and the order of the arithmetic: ../README.md.

`scan_tiles` reads a tile of a and b into registers, once, finds the state before the tile, and writes h. The state is
the initial one where a sequence is one tile; else it comes from the tiles before it, by words in memory, or it was
found before by `reduce_tiles` and `carry_states`.
"""

# ruff: noqa: E741

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .arrays import Steps
from .scan import (
    advance,
    before,
    choose,
    compose,
    constant,
    fill_outside,
    fp32,
    is_last,
    load_runs,
    multiply,
    multiply_add,
    offset_of,
    own_runs,
    state_before,
    step_of,
    store,
    unused,
)


@triton.jit
def run_maps(a, b, lane, COMPLEX: tl.constexpr):
    """Each run as one map x -> P * x + l."""
    P = constant(1.0, lane, COMPLEX)
    l = constant(0.0, lane, COMPLEX)
    for i in tl.static_range(len(a.re)):
        decay = fp32(step_of(a, i))
        l = multiply_add(decay, l, fp32(step_of(b, i)))
        P = multiply(P, decay)
    return P, l


@triton.jit(do_not_specialize=["a", "b", "initial_state", "counts"])
def scan_tiles(
    a,
    b,
    initial_state,
    words_ptr,
    bounds_ptr,
    state_ptr,
    h_ptr,
    final_ptr,
    counts,
    D,
    REVERSE: tl.constexpr,
    COMPLEX: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """h (B, T, D) and the final state (sequences, D)."""
    wait_for_previous(OVERLAP)
    STEPS: tl.constexpr = TILE.steps
    runs = own_runs(bounds_ptr, counts, TILE)
    if unused(bounds_ptr, runs, TILE):
        return
    first, length, lane = runs.first, runs.length, runs.lane
    decays = load_runs(a, runs, first, length, D, 1.0, REVERSE, COMPLEX, TILE)
    inputs = load_runs(b, runs, first, length, D, 0.0, REVERSE, COMPLEX, TILE)
    let_next_start(OVERLAP)
    inside = runs.channel < D
    fill_outside(Steps(h_ptr, 0, D, 1), bounds_ptr, runs, counts, inside, COMPLEX, TILE)

    P, l = run_maps(decays, inputs, lane, COMPLEX)
    P, l = compose(P, l, lane, TILE)
    state = state_before(P, l, initial_state, words_ptr, state_ptr, runs, D, COMPLEX, TILE)
    P, l = before(P, l, lane, TILE.channels)
    h = choose(lane < TILE.channels, state, advance(P, state, l))

    offset = offset_of(Steps(h_ptr, tl.cast(counts.steps, tl.int64) * D, D, 1), first, runs, REVERSE)
    stride = -D if REVERSE else D
    # Written otherwise than the masks of the loads, else the compiler keeps all of those in registers until here.
    left = tl.where(inside, length - first, 0)
    for i in tl.static_range(STEPS):
        h = multiply_add(fp32(step_of(decays, i)), h, fp32(step_of(inputs, i)))
        store(h_ptr, offset + tl.cast(i, tl.int64) * stride, h, i < left)
    if final_ptr is not None:
        last = inside & (lane // TILE.channels == TILE.rows - 1) & is_last(runs, TILE)
        store(final_ptr, tl.cast(runs.sequence, tl.int64) * D + runs.channel, h, last)


@triton.jit(do_not_specialize=["a", "b", "counts"])
def reduce_tiles(
    a,
    b,
    bounds_ptr,
    P_ptr,
    l_ptr,
    counts,
    D,
    REVERSE: tl.constexpr,
    COMPLEX: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Each tile as one map: P and l (slots, D)."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    runs = own_runs(bounds_ptr, counts, TILE)
    if unused(bounds_ptr, runs, TILE):
        return
    decays = load_runs(a, runs, runs.first, runs.length, D, 1.0, REVERSE, COMPLEX, TILE)
    inputs = load_runs(b, runs, runs.first, runs.length, D, 0.0, REVERSE, COMPLEX, TILE)
    P, l = run_maps(decays, inputs, runs.lane, COMPLEX)
    P, l = compose(P, l, runs.lane, TILE)
    last_row = (runs.channel < D) & (runs.lane // TILE.channels == TILE.rows - 1)
    offset = (runs.origin + runs.tile * runs.pitch).to(tl.int64) * D + runs.channel
    store(P_ptr, offset, P, last_row)
    store(l_ptr, offset, l, last_row)
