"""Linear scan, backward. Symbols and formulas: ../README.md.

The gradient runs the other way, g_t = dh_t + conj(a_{t+1}) g_{t+1}, and is itself a scan: the same tiles, counted from
the sequence's other end, with a read one step late and 1 in its first place. db is g; da multiplies it with the h of
the step before in time, which is the next one here.
"""

# ruff: noqa: E741

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .arrays import Complex, Real, Steps
from .scan import (
    advance,
    before,
    choose,
    compose,
    constant,
    fill_outside,
    fp32,
    is_last,
    load,
    load_runs,
    load_state,
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
def run_maps(a, dh, lane, COMPLEX: tl.constexpr):
    """Each run as one map x -> P * x + l."""
    P = constant(1.0, lane, COMPLEX)
    l = constant(0.0, lane, COMPLEX)
    for i in tl.static_range(len(a.re)):
        decay = fp32(step_of(a, i), CONJ=True)
        l = multiply_add(decay, l, fp32(step_of(dh, i)))
        P = multiply(P, decay)
    return P, l


@triton.jit
def channel_sum(x, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The sum over the channels of each row."""
    if len(x) == 2:
        return Complex(tl.sum(tl.reshape(x.re, [ROWS, CHANNELS]), 1), tl.sum(tl.reshape(x.im, [ROWS, CHANNELS]), 1))
    else:
        return Real(tl.sum(tl.reshape(x.re, [ROWS, CHANNELS]), 1))


@triton.jit(do_not_specialize=["dh", "dfinal_state", "a", "h", "initial_state", "counts"])
def scan_tiles(
    dh,
    dfinal_state,
    a,
    h,
    initial_state,
    words_ptr,
    bounds_ptr,
    state_ptr,
    da_ptr,
    db_ptr,
    dinitial_ptr,
    counts,
    D,
    SUM_CHANNELS: tl.constexpr,
    REVERSE: tl.constexpr,
    COMPLEX: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """da, db (B, T, D) and dinitial (sequences, D); REVERSE is the direction of the gradient, not of the forward pass.

    With SUM_CHANNELS, da is summed over the channels of each program: (blocks, B, T).
    """
    wait_for_previous(OVERLAP)
    STEPS: tl.constexpr = TILE.steps
    ROWS: tl.constexpr = TILE.rows
    CHANNELS: tl.constexpr = TILE.channels
    T = counts.steps
    runs = own_runs(bounds_ptr, counts, TILE)
    if unused(bounds_ptr, runs, TILE):
        return
    first, start, length, lane = runs.first, runs.start, runs.length, runs.lane
    gradients = load_runs(dh, runs, first, length, D, 0.0, REVERSE, COMPLEX, TILE)
    # One step late; past the end it is 1, so the gradient stays what dinitial is made of.
    decays = load_runs(a, runs, first - 1, length - 1, D, 1.0, REVERSE, COMPLEX, TILE)
    if da_ptr is not None:
        states = load_runs(h, runs, first + 1, length, D, 0.0, REVERSE, COMPLEX, TILE)
    let_next_start(OVERLAP)
    inside = runs.channel < D
    if db_ptr is not None:
        fill_outside(Steps(db_ptr, 0, D, 1), bounds_ptr, runs, counts, inside, COMPLEX, TILE)
    if da_ptr is not None:
        if SUM_CHANNELS:
            sums = da_ptr + tl.cast(runs.block, tl.int64) * T * (2 if COMPLEX else 1)
            first_channel = lane % CHANNELS == 0
            fill_outside(Steps(sums, 0, 1, 0), bounds_ptr, runs, counts, first_channel, COMPLEX, TILE)
        else:
            fill_outside(Steps(da_ptr, 0, D, 1), bounds_ptr, runs, counts, inside, COMPLEX, TILE)

    P, l = run_maps(decays, gradients, lane, COMPLEX)
    P, l = compose(P, l, lane, TILE)
    state = state_before(P, l, dfinal_state, words_ptr, state_ptr, runs, D, COMPLEX, TILE)
    P, l = before(P, l, lane, CHANNELS)
    g = choose(lane < CHANNELS, state, advance(P, state, l))

    offset = offset_of(Steps(None, tl.cast(T, tl.int64) * D, D, 1), first, runs, REVERSE)
    stride = -D if REVERSE else D
    last_step = length - 1
    if da_ptr is not None:
        initial = load_state(initial_state, runs.sequence, lane, runs.channel, D, COMPLEX)
    # Written otherwise than the masks of the loads, else the compiler keeps all of those in registers until here.
    left = tl.where(inside, length - first, 0)
    for i in tl.static_range(STEPS):
        exists = i < left
        g = multiply_add(fp32(step_of(decays, i), CONJ=True), g, fp32(step_of(gradients, i)))
        here = offset + tl.cast(i, tl.int64) * stride
        if db_ptr is not None:
            store(db_ptr, here, g, exists)
        if da_ptr is not None:
            earlier = fp32(step_of(states, i), CONJ=True)
            if initial_state.pointer is not None:
                earlier = choose(left == i + 1, fp32(initial, CONJ=True), earlier)
            da = multiply(earlier, g)
            if SUM_CHANNELS:
                da = channel_sum(choose(exists, da, constant(0.0, lane, COMPLEX)), ROWS, CHANNELS)
                step = (runs.tile << TILE.levels) * STEPS + tl.arange(0, ROWS) * STEPS + i
                t = start + (length - 1 - step if REVERSE else step)
                rows = 1 if bounds_ptr is not None else counts.sequences
                partial = (tl.cast(runs.block, tl.int64) * rows + runs.batch) * T + t
                store(da_ptr, partial, da, step < length)
            else:
                store(da_ptr, here, da, exists)
    if dinitial_ptr is not None:
        last = inside & (lane // CHANNELS == ROWS - 1) & is_last(runs, TILE)
        end = offset_of(a, last_step + 0 * lane, runs, REVERSE)
        decay = fp32(load(a.pointer, end, last & (length > 0), 1.0, COMPLEX), CONJ=True)
        store(dinitial_ptr, tl.cast(runs.sequence, tl.int64) * D + runs.channel, multiply(decay, g), last)


@triton.jit(do_not_specialize=["dh", "a", "counts"])
def reduce_tiles(
    dh,
    a,
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
    gradients = load_runs(dh, runs, runs.first, runs.length, D, 0.0, REVERSE, COMPLEX, TILE)
    decays = load_runs(a, runs, runs.first - 1, runs.length - 1, D, 1.0, REVERSE, COMPLEX, TILE)
    P, l = run_maps(decays, gradients, runs.lane, COMPLEX)
    P, l = compose(P, l, runs.lane, TILE)
    last_row = (runs.channel < D) & (runs.lane // TILE.channels == TILE.rows - 1)
    offset = (runs.origin + runs.tile * runs.pitch).to(tl.int64) * D + runs.channel
    store(P_ptr, offset, P, last_row)
    store(l_ptr, offset, l, last_row)
