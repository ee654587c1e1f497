# mypy: ignore-errors
"""causal_conv1d, backward. Symbols and formulas: ../README.md.

As in the forward pass, lanes of a tile walk over time. At step t the tile meets the newest dpre, of step t + W - 1,
while the W - 1 before it, and as many inputs, are in registers: enough for dx at step t, and for what the input at
step t adds to dweight. So the sums for dweight need no borders: each counts the inputs that its program owns.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .forward import (
    add_initial,
    convolve,
    find_sequence,
    load_bias,
    load_past,
    load_planes,
    load_step,
    load_taps,
    place,
    row_and_bounds,
    sequence_bounds,
    sigmoid,
    store_vectors,
    tile_channels,
    tile_of,
    time_of,
    time_tile,
)


@triton.jit
def output_gradient(
    dy, taps, window, bias, W: tl.constexpr, SILU: tl.constexpr, FAST: tl.constexpr
):  # fmt: skip
    """dpre of the newest step of a window of inputs; fp32."""
    dpre = dy.to(tl.float32)
    if SILU:
        z = convolve(taps, window, bias, W)
        s = sigmoid(z, FAST)
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
def add_final_gradient(total, dfinal_ptr, t, stride, last, mask, W: tl.constexpr):
    """Add the final state's gradient to that of an input it holds."""
    if dfinal_ptr is None:
        return total
    else:
        entry = t - last + (W - 1)
        within = (entry >= 0) & (t < last) & mask
        return total + tl.load(dfinal_ptr + entry.to(tl.int64) * stride, mask=within, other=0.0).to(tl.float32)


@triton.jit
def backward_segment(
    sums, dbias, dy_ptr, dfinal_ptr, x_ptr, initial_ptr, dx_ptr, taps, bias, first, last, begin, end, steps, live, mask,
    dy_stride, dfinal_stride, x_stride, initial_stride,
    W: tl.constexpr, SILU: tl.constexpr, FAST: tl.constexpr, PACKED: tl.constexpr, CHANNELS: tl.constexpr,
    LANES: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Steps begin to end of the sequence first..last: writes dx, and returns what they add to dweight and dbias."""
    start = begin + tl.arange(0, LANES)[:, None] * steps
    read = mask & live
    past = ()
    for j in tl.static_range(W - 1):
        t = start - (W - 1) + j
        past += (load_past(x_ptr, initial_ptr, t, x_stride, initial_stride, first, last, read, W),)
    window = past
    dpre = ()
    for i in tl.static_range(W - 1):
        window += (load_step(x_ptr, start + i, x_stride, last, read).to(tl.float32),)
        newest = load_step(dy_ptr, start + i, dy_stride, last, read)
        dpre += (output_gradient(newest, taps, window, bias, W, SILU, FAST),)
        window = window[1:]
    if initial_ptr is not None:
        sums = add_past_products(sums, past, dpre, start == first, W)

    for done in tl.range(0, tl.minimum(steps, end - begin), UNROLL, num_stages=STAGES):
        x = ()
        dy = ()
        for i in tl.static_range(UNROLL):
            t = start + done + i + (W - 1)
            x += (load_step(x_ptr, t, x_stride, last, read),)
            dy += (load_step(dy_ptr, t, dy_stride, last, read),)
        for i in tl.static_range(UNROLL):
            t = start + done + i
            window += (x[i].to(tl.float32),)
            dpre += (output_gradient(dy[i], taps, window, bias, W, SILU, FAST),)
            if PACKED:  # the last lane may reach beyond the chunk
                sums = add_products(sums, tl.where(t < end, window[0], 0.0), dpre, W)
                dbias += tl.where(t < end, dpre[0], 0.0)
            else:
                sums = add_products(sums, window[0], dpre, W)
                dbias += dpre[0]
            if dx_ptr is not None:
                dx = input_gradient(taps, dpre, W)
                dx = add_final_gradient(dx, dfinal_ptr, t, dfinal_stride, last, read, W)
                tl.store(dx_ptr + t.to(tl.int64) * CHANNELS, dx.to(dx_ptr.dtype.element_ty), mask=(t < end) & mask)
            window = window[1:]
            dpre = dpre[1:]
    return sums, dbias


@triton.jit
def store_sums(sums, dbias, dweight_ptr, dbias_ptr, partial, d, mask, D: tl.constexpr, W: tl.constexpr):
    """Write a program's row of partial sums, added up over the time axis of its tile."""
    if dweight_ptr is not None:
        for k in tl.static_range(W):
            place_of = dweight_ptr + (partial.to(tl.int64) * D + d) * W + k
            tl.store(place_of, tl.sum(sums[k], axis=0), mask=mask)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + (partial.to(tl.int64) * D + d), tl.sum(dbias, axis=0), mask=mask)


@triton.jit(do_not_specialize=["T", "sequences", "steps"])
def backward_channels(
    dy_ptr,
    dfinal_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    initial_ptr,
    cu_seqlens_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dy_strides,
    dfinal_strides,
    x_strides,
    weight_strides,
    bias_strides,
    initial_strides,
    cu_seqlens_strides,
    T,
    sequences,
    steps,
    D: tl.constexpr,
    W: tl.constexpr,
    SILU: tl.constexpr,
    FAST: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    UNROLL: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dx, and a row of partial sums (chunks, D, W) of dweight and (chunks, D) of dbias a program."""
    wait_for_previous(OVERLAP)
    chunks = tl.cdiv(T, LANES * steps)
    row, chunk, block = place(chunks, D, BLOCK_D)
    d, mask = tile_channels(block, D, LANES, BLOCK_D)
    taps = load_taps(weight_ptr, d, weight_strides, mask, W)
    bias = load_bias(bias_ptr, d, bias_strides[0], mask)
    dy = tile_of(dy_ptr, row, d, dy_strides[0], dy_strides[2])
    x = tile_of(x_ptr, row, d, x_strides[0], x_strides[2])
    dx = tile_of(dx_ptr, row, d, T.to(tl.int64) * D, 1)
    sums = ()
    for _ in tl.static_range(W):
        sums += (tl.zeros([LANES, BLOCK_D], tl.float32),)
    dbias = tl.zeros([LANES, BLOCK_D], tl.float32)

    begin = chunk * LANES * steps
    end = tl.minimum(begin + LANES * steps, T)
    if cu_seqlens_ptr is None:
        dfinal = tile_of(dfinal_ptr, row, d, dfinal_strides[0], dfinal_strides[1])
        initial = tile_of(initial_ptr, row, d, initial_strides[0], initial_strides[1])
        sums, dbias = backward_segment(
            sums, dbias, dy, dfinal, x, initial, dx, taps, bias, 0, T, begin, end, steps, True, mask,
            dy_strides[1], dfinal_strides[2], x_strides[1], initial_strides[2],
            W, SILU, FAST, False, D, LANES, UNROLL, STAGES,
        )  # fmt: skip
    else:
        sequence = find_sequence(cu_seqlens_ptr, cu_seqlens_strides[0], sequences, begin)
        while begin < end:
            first, last = sequence_bounds(cu_seqlens_ptr, cu_seqlens_strides[0], sequence, sequences, T)
            stop = tl.minimum(last, end)
            if stop > begin:
                live = (sequence >= 0) & (sequence < sequences)
                inside = tl.minimum(tl.maximum(sequence, 0), sequences - 1)
                dfinal = tile_of(dfinal_ptr, inside, d, dfinal_strides[0], dfinal_strides[1])
                initial = tile_of(initial_ptr, inside, d, initial_strides[0], initial_strides[1])
                sums, dbias = backward_segment(
                    sums, dbias, dy, dfinal, x, initial, dx, taps, bias, first, last, begin, stop, steps, live, mask,
                    dy_strides[1], dfinal_strides[2], x_strides[1], initial_strides[2],
                    W, SILU, FAST, True, D, LANES, UNROLL, STAGES,
                )  # fmt: skip
                begin = stop
            sequence += 1

    let_next_start(OVERLAP)
    column = block * BLOCK_D + tl.arange(0, BLOCK_D)
    store_sums(sums, dbias, dweight_ptr, dbias_ptr, row * chunks + chunk, column, column < D, D, W)


@triton.jit(do_not_specialize=["T"])
def initial_gradients(
    dy_ptr,
    dfinal_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    initial_ptr,
    cu_seqlens_ptr,
    dinitial_ptr,
    dy_strides,
    dfinal_strides,
    x_strides,
    weight_strides,
    bias_strides,
    initial_strides,
    cu_seqlens_strides,
    T,
    D: tl.constexpr,
    W: tl.constexpr,
    SILU: tl.constexpr,
    FAST: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dinitial_state: of the first W - 1 steps of each sequence, and of the final state where it is shorter."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    sequence, _, block = place(1, D, BLOCK_D)
    d, mask = tile_channels(block, D, 1, BLOCK_D)
    row, first, last = row_and_bounds(cu_seqlens_ptr, cu_seqlens_strides[0], sequence, T)
    taps = load_taps(weight_ptr, d, weight_strides, mask, W)
    bias = load_bias(bias_ptr, d, bias_strides[0], mask)
    dy = tile_of(dy_ptr, row, d, dy_strides[0], dy_strides[2])
    x = tile_of(x_ptr, row, d, x_strides[0], x_strides[2])
    dfinal = tile_of(dfinal_ptr, sequence, d, dfinal_strides[0], dfinal_strides[1])
    initial = tile_of(initial_ptr, sequence, d, initial_strides[0], initial_strides[1])
    start = first + tl.zeros([1, 1], tl.int32)
    window = ()
    for j in tl.static_range(W - 1):
        t = start - (W - 1) + j
        window += (load_past(x, initial, t, x_strides[1], initial_strides[2], first, last, mask, W),)
    dpre = ()
    for j in tl.static_range(W - 1):
        window += (load_step(x, start + j, x_strides[1], last, mask).to(tl.float32),)
        dpre += (
            output_gradient(load_step(dy, start + j, dy_strides[1], last, mask), taps, window, bias, W, SILU, FAST),
        )
        window = window[1:]
        total = taps[j] * dpre[0]
        for lag in tl.static_range(1, j + 1):
            total = tl.fma(taps[j - lag], dpre[lag], total)
        total = add_final_gradient(total, dfinal, start - (W - 1) + j, dfinal_strides[2], last, mask, W)
        place_of = (sequence.to(tl.int64) * D + d) * (W - 1) + j
        tl.store(dinitial_ptr + place_of, total.to(dinitial_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["T", "tiles"])
def backward_time(
    dy_ptr,
    dfinal_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    initial_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dy_strides,
    dfinal_strides,
    x_strides,
    weight_strides,
    bias_strides,
    initial_strides,
    T,
    tiles,
    D: tl.constexpr,
    W: tl.constexpr,
    SILU: tl.constexpr,
    FAST: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
    VECTOR: tl.constexpr,
    EVEN: tl.constexpr,
    X_IN_TIME: tl.constexpr,
    DY_IN_TIME: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """As `backward_channels`, where the steps of a channel lie next to each other in x, in dy or in both.

    A thread holds VECTOR steps of a channel; the dpre behind them are computed again by those that own them.
    """
    wait_for_previous(OVERLAP)
    chunks = tl.cdiv(T, tiles * BLOCKS * VECTOR)
    row, chunk, block = place(chunks, D, CHANNELS)
    d, mask = time_tile(block, D, BLOCKS, CHANNELS)
    taps = load_taps(weight_ptr, d, weight_strides, mask, W)
    bias = load_bias(bias_ptr, d, bias_strides[0], mask)
    dy_ptr = tile_of(dy_ptr, row, d, dy_strides[0], dy_strides[2])
    dfinal_ptr = tile_of(dfinal_ptr, row, d, dfinal_strides[0], dfinal_strides[1])
    x_ptr = tile_of(x_ptr, row, d, x_strides[0], x_strides[2])
    initial_ptr = tile_of(initial_ptr, row, d, initial_strides[0], initial_strides[1])
    dx_ptr = tile_of(dx_ptr, row, d, T.to(tl.int64) * D, 1)
    sums = ()
    for _ in tl.static_range(W):
        sums += (tl.zeros([BLOCKS, CHANNELS], tl.float32),)
    dbias = tl.zeros([BLOCKS, CHANNELS], tl.float32)

    for tile in range(tiles):
        t = time_of(chunk, tile, tiles, BLOCKS, VECTOR)
        x = load_planes(
            x_ptr, t, x_strides[1], T, mask, 1 - W, VECTOR + W - 1, BLOCKS, CHANNELS, VECTOR, EVEN, X_IN_TIME
        )  # fmt: skip
        dy = load_planes(
            dy_ptr, t, dy_strides[1], T, mask, 0, VECTOR + W - 1, BLOCKS, CHANNELS, VECTOR, EVEN, DY_IN_TIME
        )  # fmt: skip
        x = add_initial(x, initial_ptr, t, initial_strides[2], mask, W)
        dpre = ()
        for i in tl.static_range(VECTOR + W - 1):
            dpre += (output_gradient(dy[i], taps, x[i : i + W], bias, W, SILU, FAST),)
        if initial_ptr is not None:
            sums = add_past_products(sums, x, dpre, t == 0, W)
        planes = ()
        for i in tl.static_range(VECTOR):
            sums = add_products(sums, x[i + W - 1], dpre[i : i + W], W)
            dbias += dpre[i]
            if dx_ptr is not None:
                dx = input_gradient(taps, dpre[i : i + W], W)
                dx = add_final_gradient(dx, dfinal_ptr, t + i, dfinal_strides[2], T, mask, W)
                planes += (dx.to(dx_ptr.dtype.element_ty),)
        if dx_ptr is not None:
            store_vectors(dx_ptr, planes, t, T, mask, D, BLOCKS, CHANNELS, VECTOR)

    let_next_start(OVERLAP)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    store_sums(sums, dbias, dweight_ptr, dbias_ptr, row * chunks + chunk, channel, channel < D, D, W)
