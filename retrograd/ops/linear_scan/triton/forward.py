"""Linear scan, forward. Symbols and the order of the arithmetic: ../README.md.

`scan_tiles` reads a tile of a and b into registers, once, finds the state before the tile, and writes h. The state is
the initial one where a sequence is one tile; else it comes from the tiles before it, by words in memory, or it was
found before by `reduce_tiles` and `carry_states`.
"""

# ruff: noqa: E741

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

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
    load_state,
    multiply,
    multiply_add,
    offset_of,
    runs,
    store,
    tile_state,
    unused,
)


@triton.jit
def run_maps(a, b, lane, COMPLEX: tl.constexpr):
    """Each run as one map x -> P * x + l."""
    P = constant(1.0, lane, COMPLEX)
    l = constant(0.0, lane, COMPLEX)
    for i in tl.static_range(len(a)):
        decay = fp32(a[i])
        l = multiply_add(decay, l, fp32(b[i]))
        P = multiply(P, decay)
    return P, l


@triton.jit(do_not_specialize=["T", "sequences", "blocks", "a_strides", "b_strides", "initial_strides"])
def scan_tiles(
    a_ptr,
    b_ptr,
    initial_ptr,
    words_ptr,
    bounds_ptr,
    state_ptr,
    h_ptr,
    final_ptr,
    a_strides,
    b_strides,
    initial_strides,
    T,
    D,
    sequences,
    blocks,
    REVERSE: tl.constexpr,
    COMPLEX: tl.constexpr,
    STEPS: tl.constexpr,
    LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """h (B, T, D) and the final state (sequences, D)."""
    wait_for_previous(OVERLAP)
    ROWS: tl.constexpr = 1 << LEVELS
    s, tile, origin, pitch, start, length, _, lane, channel, first = runs(
        bounds_ptr, T, D, sequences, blocks, STEPS, LEVELS, CHANNELS
    )
    if unused(bounds_ptr, tile, length, STEPS, LEVELS):
        return
    batch = s if bounds_ptr is None else 0
    a = load_runs(a_ptr, first, length, start, length, batch, channel, D, a_strides, 1.0, STEPS, REVERSE, COMPLEX)
    b = load_runs(b_ptr, first, length, start, length, batch, channel, D, b_strides, 0.0, STEPS, REVERSE, COMPLEX)
    let_next_start(OVERLAP)
    inside = channel < D
    fill_outside(
        h_ptr, bounds_ptr, s, tile, sequences, T, D, lane, channel, D, 1, inside, CHANNELS, ROWS, COMPLEX
    )  # fmt: skip

    P, l = run_maps(a, b, lane, COMPLEX)
    P, l = compose(P, l, lane, LEVELS, CHANNELS)
    if state_ptr is not None:
        state = load_state(state_ptr, origin + tile * pitch, lane, channel, D, (D, 1), COMPLEX)
    else:
        state = load_state(initial_ptr, s, lane, channel, D, initial_strides, COMPLEX)
        if words_ptr is not None:
            state = tile_state(
                P, l, state, words_ptr, tile, origin, pitch, length, lane, channel, D, COMPLEX, STEPS, LEVELS, CHANNELS
            )
    P, l = before(P, l, lane, CHANNELS)
    h = choose(lane < CHANNELS, state, advance(P, state, l))

    offset = offset_of(first, start, length, batch, channel, (tl.cast(T, tl.int64) * D, D, 1), REVERSE)
    stride = -D if REVERSE else D
    # Written otherwise than the masks of the loads, else the compiler keeps all of those in registers until here.
    left = tl.where(inside, length - first, 0)
    for i in tl.static_range(STEPS):
        h = multiply_add(fp32(a[i]), h, fp32(b[i]))
        store(h_ptr, offset + tl.cast(i, tl.int64) * stride, h, i < left)
    if final_ptr is not None:
        last = inside & (lane // CHANNELS == ROWS - 1) & is_last(tile, length, STEPS, LEVELS)
        store(final_ptr, tl.cast(s, tl.int64) * D + channel, h, last)


@triton.jit(do_not_specialize=["T", "sequences", "blocks", "a_strides", "b_strides"])
def reduce_tiles(
    a_ptr,
    b_ptr,
    bounds_ptr,
    P_ptr,
    l_ptr,
    a_strides,
    b_strides,
    T,
    D,
    sequences,
    blocks,
    REVERSE: tl.constexpr,
    COMPLEX: tl.constexpr,
    STEPS: tl.constexpr,
    LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Each tile as one map: P and l (slots, D)."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    s, tile, origin, pitch, start, length, _, lane, channel, first = runs(
        bounds_ptr, T, D, sequences, blocks, STEPS, LEVELS, CHANNELS
    )
    if unused(bounds_ptr, tile, length, STEPS, LEVELS):
        return
    batch = s if bounds_ptr is None else 0
    a = load_runs(a_ptr, first, length, start, length, batch, channel, D, a_strides, 1.0, STEPS, REVERSE, COMPLEX)
    b = load_runs(b_ptr, first, length, start, length, batch, channel, D, b_strides, 0.0, STEPS, REVERSE, COMPLEX)
    P, l = run_maps(a, b, lane, COMPLEX)
    P, l = compose(P, l, lane, LEVELS, CHANNELS)
    last_row = (channel < D) & (lane // CHANNELS == (1 << LEVELS) - 1)
    offset = (origin + tile * pitch).to(tl.int64) * D + channel
    store(P_ptr, offset, P, last_row)
    store(l_ptr, offset, l, last_row)
