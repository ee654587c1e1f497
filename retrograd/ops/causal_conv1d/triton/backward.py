# mypy: ignore-errors
"""causal_conv1d, backward. Symbols and formulas: ../README.md.

As in the forward pass, lanes of a tile walk over time. At step t the tile meets the newest dpre, of step t + W - 1,
while the W - 1 before it, and as many inputs, are in registers: enough for dx at step t, and for what the input at
step t adds to dweight. So the sums for dweight need no borders: each counts the inputs that its program owns.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .arrays import Filters, Segment
from .forward import (
    add_initial,
    convolve,
    dense_of,
    find_sequence,
    line_of,
    load_filters,
    load_past,
    load_planes,
    load_step,
    row_and_bounds,
    sequence_bounds,
    sigmoid,
    store_vectors,
    tile_channels,
    tile_of_program,
    time_of,
)


@triton.jit
def output_gradient(dy, filters, window, ACTIVATION: tl.constexpr):
    """dpre of the newest step of a window of inputs; fp32."""
    dpre = dy.to(tl.float32)
    if ACTIVATION.silu:
        z = convolve(filters, window)
        s = sigmoid(z, ACTIVATION.fast)
        dpre *= s * tl.fma(z, 1.0 - s, 1.0)
    return dpre


@triton.jit
def input_gradient(taps, dpre, W: tl.constexpr):
    """dx of the oldest step of a window of dpre: sum over k of taps[k] * dpre[W - 1 - k], from the oldest on."""
    total = taps[W - 1] * dpre[0]
    for lag in tl.static_range(1, W):
        total = tl.fma(taps[W - 1 - lag], dpre[lag], total)
    return total


@triton.jit
def add_products(sums, value, dpre, W: tl.constexpr):
    """sums[k] += value * dpre[W - 1 - k]: what the input of the oldest step adds to dweight."""
    added = ()
    for k in tl.static_range(W):
        added += (tl.fma(value, dpre[W - 1 - k], sums[k]),)
    return added


@triton.jit
def add_past_products(sums, window, dpre, counts, W: tl.constexpr):
    """The same for the W - 1 inputs of the initial state, where a lane begins with it."""
    added = ()
    for k in tl.static_range(W):
        total = sums[k]
        for j in tl.static_range(k, W - 1):
            total = tl.fma(tl.where(counts, window[j], 0.0), dpre[j - k], total)
        added += (total,)
    return added


@triton.jit
def add_final_gradient(total, dfinal, t, last, mask, W: tl.constexpr):
    """Add the final state's gradient to that of an input it holds."""
    if dfinal is None:
        return total
    else:
        entry = t - last + (W - 1)
        within = (entry >= 0) & (t < last) & mask
        return total + tl.load(dfinal.pointer + entry.to(tl.int64) * dfinal.step, mask=within, other=0.0).to(tl.float32)


@triton.jit
def backward_segment(
    sums,
    dy,
    dfinal,
    x,
    initial,
    dx,
    filters,
    segment,
    walk,
    mask,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Write dx of a segment, and return `sums` with what it adds to the gradients of filters."""
    W: tl.constexpr = SIZES.taps
    UNROLL: tl.constexpr = TILE.unroll
    first, last, end = segment.first, segment.last, segment.end
    start = segment.begin + tl.arange(0, TILE.lanes)[:, None] * walk
    read = mask & segment.live
    past = ()
    for j in tl.static_range(W - 1):
        past += (load_past(x, initial, start - (W - 1) + j, first, last, read, W),)
    window = past
    dpre = ()
    for i in tl.static_range(W - 1):
        window += (load_step(x, start + i, last, read).to(tl.float32),)
        dpre += (output_gradient(load_step(dy, start + i, last, read), filters, window, ACTIVATION),)
        window = window[1:]
    if initial is not None:
        sums = Filters(add_past_products(sums.taps, past, dpre, start == first, W), sums.bias)

    for done in tl.range(0, tl.minimum(walk, end - segment.begin), UNROLL, num_stages=TILE.stages):
        inputs = ()
        gradients = ()
        for i in tl.static_range(UNROLL):
            t = start + done + i + (W - 1)
            inputs += (load_step(x, t, last, read),)
            gradients += (load_step(dy, t, last, read),)
        for i in tl.static_range(UNROLL):
            t = start + done + i
            window += (inputs[i].to(tl.float32),)
            dpre += (output_gradient(gradients[i], filters, window, ACTIVATION),)
            if PACKED:  # the last lane may reach beyond the chunk
                taps = add_products(sums.taps, tl.where(t < end, window[0], 0.0), dpre, W)
                sums = Filters(taps, sums.bias + tl.where(t < end, dpre[0], 0.0))
            else:
                sums = Filters(add_products(sums.taps, window[0], dpre, W), sums.bias + dpre[0])
            if dx is not None:
                total = input_gradient(filters.taps, dpre, W)
                total = add_final_gradient(total, dfinal, t, last, read, W)
                tl.store(dx + t.to(tl.int64) * SIZES.channels, total.to(dx.dtype.element_ty), mask=(t < end) & mask)
            window = window[1:]
            dpre = dpre[1:]
    return sums


@triton.jit
def store_sums(sums, dweight_ptr, dbias_ptr, partial, d, SIZES: tl.constexpr):
    """Write a program's row of partial sums, added up over the time axis of its tile."""
    D: tl.constexpr = SIZES.channels
    W: tl.constexpr = SIZES.taps
    if dweight_ptr is not None:
        for k in tl.static_range(W):
            offsets = (partial.to(tl.int64) * D + d) * W + k
            tl.store(dweight_ptr + offsets, tl.sum(sums.taps[k], axis=0), mask=d < D)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + (partial.to(tl.int64) * D + d), tl.sum(sums.bias, axis=0), mask=d < D)


@triton.jit
def no_sums(ROWS: tl.constexpr, BLOCK_D: tl.constexpr, W: tl.constexpr):
    """Zeros, to which the gradients of filters are added."""
    taps = ()
    for _ in tl.static_range(W):
        taps += (tl.zeros([ROWS, BLOCK_D], tl.float32),)
    return Filters(taps, tl.zeros([ROWS, BLOCK_D], tl.float32))


@triton.jit(do_not_specialize=["lengths"])
def backward_channels(
    dy,
    dfinal_state,
    x,
    weight,
    bias,
    initial_state,
    cu_seqlens,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    lengths,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dx, and a row of partial sums (chunks, D, W) of dweight and (chunks, D) of dbias a program."""
    wait_for_previous(OVERLAP)
    T, sequences, walk = lengths.steps, lengths.sequences, lengths.walk
    chunks = tl.cdiv(T, TILE.lanes * walk)
    row, chunk, block = tile_of_program(chunks, SIZES.channels, TILE.channels)
    d, mask = tile_channels(block, SIZES.channels, TILE.lanes, TILE.channels)
    filters = load_filters(weight, bias, d, mask, SIZES.taps)
    dy = line_of(dy, row, d)
    x = line_of(x, row, d)
    dx = dense_of(dx_ptr, row, d, T, SIZES.channels)
    sums = no_sums(TILE.lanes, TILE.channels, SIZES.taps)

    begin = chunk * TILE.lanes * walk
    end = tl.minimum(begin + TILE.lanes * walk, T)
    if cu_seqlens.pointer is None:
        dfinal = line_of(dfinal_state, row, d)
        initial = line_of(initial_state, row, d)
        segment = Segment(0, T, begin, end, True)
        sums = backward_segment(
            sums, dy, dfinal, x, initial, dx, filters, segment, walk, mask, SIZES, ACTIVATION, TILE, PACKED=False
        )
    else:
        sequence = find_sequence(cu_seqlens, sequences, begin)
        while begin < end:
            first, last = sequence_bounds(cu_seqlens, sequence, sequences, T)
            stop = tl.minimum(last, end)
            if stop > begin:
                live = (sequence >= 0) & (sequence < sequences)
                inside = tl.minimum(tl.maximum(sequence, 0), sequences - 1)
                dfinal = line_of(dfinal_state, inside, d)
                initial = line_of(initial_state, inside, d)
                segment = Segment(first, last, begin, stop, live)
                sums = backward_segment(
                    sums, dy, dfinal, x, initial, dx, filters, segment, walk, mask, SIZES, ACTIVATION, TILE, PACKED=True
                )
                begin = stop
            sequence += 1

    let_next_start(OVERLAP)
    column = block * TILE.channels + tl.arange(0, TILE.channels)
    store_sums(sums, dweight_ptr, dbias_ptr, row * chunks + chunk, column, SIZES)


@triton.jit(do_not_specialize=["T"])
def initial_gradients(
    dy,
    dfinal_state,
    x,
    weight,
    bias,
    initial_state,
    cu_seqlens,
    dinitial_ptr,
    T,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dinitial_state: of the first W - 1 steps of each sequence, and of the final state where it is shorter."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    D: tl.constexpr = SIZES.channels
    W: tl.constexpr = SIZES.taps
    sequence, _, block = tile_of_program(1, D, BLOCK_D)
    d, mask = tile_channels(block, D, 1, BLOCK_D)
    row, first, last = row_and_bounds(cu_seqlens, sequence, T)
    filters = load_filters(weight, bias, d, mask, W)
    dy = line_of(dy, row, d)
    x = line_of(x, row, d)
    dfinal = line_of(dfinal_state, sequence, d)
    initial = line_of(initial_state, sequence, d)
    start = first + tl.zeros([1, 1], tl.int32)
    window = ()
    for j in tl.static_range(W - 1):
        window += (load_past(x, initial, start - (W - 1) + j, first, last, mask, W),)
    dpre = ()
    for j in tl.static_range(W - 1):
        window += (load_step(x, start + j, last, mask).to(tl.float32),)
        dpre += (output_gradient(load_step(dy, start + j, last, mask), filters, window, ACTIVATION),)
        window = window[1:]
        total = filters.taps[j] * dpre[0]
        for lag in tl.static_range(1, j + 1):
            total = tl.fma(filters.taps[j - lag], dpre[lag], total)
        total = add_final_gradient(total, dfinal, start - (W - 1) + j, last, mask, W)
        offsets = (sequence.to(tl.int64) * D + d) * (W - 1) + j
        tl.store(dinitial_ptr + offsets, total.to(dinitial_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["lengths"])
def backward_time(
    dy,
    dfinal_state,
    x,
    weight,
    bias,
    initial_state,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    lengths,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    X_IN_TIME: tl.constexpr,
    DY_IN_TIME: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """As `backward_channels`, where the steps of a channel lie next to each other in x, in dy or in both.

    A thread holds a vector of steps of a channel; it computes the dpre after them again, which other threads own.
    """
    wait_for_previous(OVERLAP)
    W: tl.constexpr = SIZES.taps
    VECTOR: tl.constexpr = TILE.vector
    T, tiles = lengths.steps, lengths.tiles
    chunks = tl.cdiv(T, tiles * TILE.blocks * VECTOR)
    row, chunk, block = tile_of_program(chunks, SIZES.channels, TILE.channels)
    d, mask = tile_channels(block, SIZES.channels, TILE.blocks, TILE.channels)
    filters = load_filters(weight, bias, d, mask, W)
    dy = line_of(dy, row, d)
    dfinal = line_of(dfinal_state, row, d)
    x = line_of(x, row, d)
    initial = line_of(initial_state, row, d)
    dx = dense_of(dx_ptr, row, d, T, SIZES.channels)
    sums = no_sums(TILE.blocks, TILE.channels, W)

    for tile in range(tiles):
        t = time_of(chunk, tile, tiles, TILE)
        inputs = load_planes(x, t, T, mask, 1 - W, VECTOR + W - 1, TILE, X_IN_TIME)
        gradients = load_planes(dy, t, T, mask, 0, VECTOR + W - 1, TILE, DY_IN_TIME)
        inputs = add_initial(inputs, initial, t, mask, W)
        dpre = ()
        for i in tl.static_range(VECTOR + W - 1):
            dpre += (output_gradient(gradients[i], filters, inputs[i : i + W], ACTIVATION),)
        if initial is not None:
            sums = Filters(add_past_products(sums.taps, inputs, dpre, t == 0, W), sums.bias)
        planes = ()
        for i in tl.static_range(VECTOR):
            taps = add_products(sums.taps, inputs[i + W - 1], dpre[i : i + W], W)
            sums = Filters(taps, sums.bias + dpre[i])
            if dx is not None:
                total = input_gradient(filters.taps, dpre[i : i + W], W)
                total = add_final_gradient(total, dfinal, t + i, T, mask, W)
                planes += (total.to(dx_ptr.dtype.element_ty),)
        if dx is not None:
            store_vectors(dx, planes, t, T, mask, SIZES.channels, TILE)

    let_next_start(OVERLAP)
    channel = block * TILE.channels + tl.arange(0, TILE.channels)
    store_sums(sums, dweight_ptr, dbias_ptr, row * chunks + chunk, channel, SIZES)
