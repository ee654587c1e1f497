"""Linear scan, backward. Symbols and formulas: ../README.md.

The gradient runs the other way, g_t = dh_t + conj(a_{t+1}) g_{t+1}, and is itself a scan: the same tiles, counted from
the sequence's other end, with a read one step late and 1 in its first place. db is g; da multiplies it with the h of
the step before in time, which is the next one here.
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
    load,
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
def run_maps(a, dh, lane, COMPLEX: tl.constexpr):
    """Each run as one map x -> P * x + l."""
    P = constant(1.0, lane, COMPLEX)
    l = constant(0.0, lane, COMPLEX)
    for i in tl.static_range(len(a)):
        decay = fp32(a[i], CONJ=True)
        l = multiply_add(decay, l, fp32(dh[i]))
        P = multiply(P, decay)
    return P, l


@triton.jit
def channel_sum(x, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The sum over the channels of each row."""
    if len(x) == 2:
        return (tl.sum(tl.reshape(x[0], [ROWS, CHANNELS]), 1), tl.sum(tl.reshape(x[1], [ROWS, CHANNELS]), 1))
    else:
        return (tl.sum(tl.reshape(x[0], [ROWS, CHANNELS]), 1),)


@triton.jit(
    do_not_specialize=[
        "T",
        "sequences",
        "blocks",
        "dh_strides",
        "dfinal_strides",
        "a_strides",
        "h_strides",
        "initial_strides",
    ]
)
def scan_tiles(
    dh_ptr,
    dfinal_ptr,
    a_ptr,
    h_ptr,
    initial_ptr,
    words_ptr,
    bounds_ptr,
    state_ptr,
    da_ptr,
    db_ptr,
    dinitial_ptr,
    dh_strides,
    dfinal_strides,
    a_strides,
    h_strides,
    initial_strides,
    T,
    D,
    sequences,
    blocks,
    SUM_CHANNELS: tl.constexpr,
    REVERSE: tl.constexpr,
    COMPLEX: tl.constexpr,
    STEPS: tl.constexpr,
    LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """da, db (B, T, D) and dinitial (sequences, D); REVERSE is the direction of the gradient, not of the forward pass.

    With SUM_CHANNELS, da is summed over the channels of each program: (blocks, B, T).
    """
    wait_for_previous(OVERLAP)
    ROWS: tl.constexpr = 1 << LEVELS
    s, tile, origin, pitch, start, length, block, lane, channel, first = runs(
        bounds_ptr, T, D, sequences, blocks, STEPS, LEVELS, CHANNELS
    )
    if unused(bounds_ptr, tile, length, STEPS, LEVELS):
        return
    batch = s if bounds_ptr is None else 0
    dh = load_runs(dh_ptr, first, length, start, length, batch, channel, D, dh_strides, 0.0, STEPS, REVERSE, COMPLEX)
    # One step late; past the end it is 1, so the gradient stays what dinitial is made of.
    a = load_runs(
        a_ptr, first - 1, length - 1, start, length, batch, channel, D, a_strides, 1.0, STEPS, REVERSE, COMPLEX
    )
    if da_ptr is not None:
        h = load_runs(
            h_ptr, first + 1, length, start, length, batch, channel, D, h_strides, 0.0, STEPS, REVERSE, COMPLEX
        )
    let_next_start(OVERLAP)
    inside = channel < D
    if db_ptr is not None:
        fill_outside(
            db_ptr, bounds_ptr, s, tile, sequences, T, D, lane, channel, D, 1, inside, CHANNELS, ROWS, COMPLEX
        )  # fmt: skip
    if da_ptr is not None:
        if SUM_CHANNELS:
            sums = da_ptr + tl.cast(block, tl.int64) * T * (2 if COMPLEX else 1)
            fill_outside(
                sums, bounds_ptr, s, tile, sequences, T, D, lane, channel, 1, 0, lane % CHANNELS == 0,
                CHANNELS, ROWS, COMPLEX,
            )  # fmt: skip
        else:
            fill_outside(
                da_ptr, bounds_ptr, s, tile, sequences, T, D, lane, channel, D, 1, inside, CHANNELS, ROWS, COMPLEX
            )  # fmt: skip

    P, l = run_maps(a, dh, lane, COMPLEX)
    P, l = compose(P, l, lane, LEVELS, CHANNELS)
    if state_ptr is not None:
        state = load_state(state_ptr, origin + tile * pitch, lane, channel, D, (D, 1), COMPLEX)
    else:
        state = load_state(dfinal_ptr, s, lane, channel, D, dfinal_strides, COMPLEX)
        if words_ptr is not None:
            state = tile_state(
                P, l, state, words_ptr, tile, origin, pitch, length, lane, channel, D, COMPLEX, STEPS, LEVELS, CHANNELS
            )
    P, l = before(P, l, lane, CHANNELS)
    g = choose(lane < CHANNELS, state, advance(P, state, l))

    offset = offset_of(first, start, length, batch, channel, (tl.cast(T, tl.int64) * D, D, 1), REVERSE)
    stride = -D if REVERSE else D
    last_step = length - 1
    if da_ptr is not None:
        initial = load_state(initial_ptr, s, lane, channel, D, initial_strides, COMPLEX)
    # Written otherwise than the masks of the loads, else the compiler keeps all of those in registers until here.
    left = tl.where(inside, length - first, 0)
    for i in tl.static_range(STEPS):
        exists = i < left
        g = multiply_add(fp32(a[i], CONJ=True), g, fp32(dh[i]))
        here = offset + tl.cast(i, tl.int64) * stride
        if db_ptr is not None:
            store(db_ptr, here, g, exists)
        if da_ptr is not None:
            earlier = fp32(h[i], CONJ=True)
            if initial_ptr is not None:
                earlier = choose(left == i + 1, fp32(initial, CONJ=True), earlier)
            da = multiply(earlier, g)
            if SUM_CHANNELS:
                da = channel_sum(choose(exists, da, constant(0.0, lane, COMPLEX)), ROWS, CHANNELS)
                step = (tile << LEVELS) * STEPS + tl.arange(0, ROWS) * STEPS + i
                t = start + (length - 1 - step if REVERSE else step)
                partial = (tl.cast(block, tl.int64) * (1 if bounds_ptr is not None else sequences) + batch) * T + t
                store(da_ptr, partial, da, step < length)
            else:
                store(da_ptr, here, da, exists)
    if dinitial_ptr is not None:
        last = inside & (lane // CHANNELS == ROWS - 1) & is_last(tile, length, STEPS, LEVELS)
        end = offset_of(last_step + 0 * lane, start, length, batch, channel, a_strides, REVERSE)
        decay = fp32(load(a_ptr, end, last & (length > 0), 1.0, COMPLEX), CONJ=True)
        store(dinitial_ptr, tl.cast(s, tl.int64) * D + channel, multiply(decay, g), last)


@triton.jit(do_not_specialize=["T", "sequences", "blocks", "dh_strides", "a_strides"])
def reduce_tiles(
    dh_ptr,
    a_ptr,
    bounds_ptr,
    P_ptr,
    l_ptr,
    dh_strides,
    a_strides,
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
    dh = load_runs(dh_ptr, first, length, start, length, batch, channel, D, dh_strides, 0.0, STEPS, REVERSE, COMPLEX)
    a = load_runs(
        a_ptr, first - 1, length - 1, start, length, batch, channel, D, a_strides, 1.0, STEPS, REVERSE, COMPLEX
    )
    P, l = run_maps(a, dh, lane, COMPLEX)
    P, l = compose(P, l, lane, LEVELS, CHANNELS)
    last_row = (channel < D) & (lane // CHANNELS == (1 << LEVELS) - 1)
    offset = (origin + tile * pitch).to(tl.int64) * D + channel
    store(P_ptr, offset, P, last_row)
    store(l_ptr, offset, l, last_row)


@triton.jit(do_not_specialize=["rows", "columns"])
def sum_partials(
    partial_ptr,
    out_ptr,
    rows,
    columns,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out[c] = sum over r of partial[r, c], one row after the other, whatever their number."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for r in range(rows):
        total += tl.load(partial_ptr + tl.cast(r, tl.int64) * columns + c, mask=c < columns, other=0.0)
    tl.store(out_ptr + c, total.to(out_ptr.dtype.element_ty), mask=c < columns)
