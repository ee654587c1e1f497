# mypy: ignore-errors
"""causal_conv1d, forward. Symbols and formulas: ../README.md.

A program takes CHUNK = LANES * steps consecutive steps of one row, for BLOCK_D channels. Lane r of its tile walks over
the steps r * steps, r * steps + 1, ...; the last W - 1 inputs stay in registers, so every input is loaded once. Packed
sequences are cut out of the chunk one after another.
"""

import triton
import triton.language as tl

from retrograd.core.kernels import numerics
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous


@triton.jit
def sigmoid(x, FAST: tl.constexpr):
    """1 / (1 + exp(-x)). FAST, NVIDIA only, spares 7 of 11 instructions: what they are for are denormal numbers."""
    if FAST:
        return tl.inline_asm_elementwise(
            """{
            .reg .f32 e;
            mul.f32 e, $1, 0fBFB8AA3B;
            ex2.approx.ftz.f32 e, e;
            add.f32 e, e, 0f3F800000;
            rcp.approx.ftz.f32 $0, e;
            }""",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return numerics.sigmoid(x)


@triton.jit
def place(chunks, channels: tl.constexpr, BLOCK_D: tl.constexpr):
    """(row, chunk of time, block of channels) of this program; neighbours share a chunk."""
    blocks: tl.constexpr = (channels + BLOCK_D - 1) // BLOCK_D
    program = tl.program_id(0)
    return program // blocks // chunks, program // blocks % chunks, program % blocks


@triton.jit
def find_sequence(cu_seqlens_ptr, stride, sequences, t):
    """The last sequence that begins at or before step t: -1 to `sequences`, both of which are outside."""
    low = sequences * 0 - 1
    high = sequences + 1
    while high - low > 1:
        middle = (low + high) // 2
        begun = tl.load(cu_seqlens_ptr + middle * stride) <= t
        low = tl.where(begun, middle, low)
        high = tl.where(begun, high, middle)
    return low


@triton.jit
def sequence_bounds(cu_seqlens_ptr, stride, sequence, sequences, T):
    """First step and end of a sequence, never outside of 0..T; what is outside of all has its own."""
    first = tl.load(cu_seqlens_ptr + sequence * stride, mask=sequence >= 0, other=0)
    last = tl.load(cu_seqlens_ptr + (sequence + 1) * stride, mask=sequence < sequences, other=T)
    first = tl.minimum(tl.maximum(first, 0), T)
    return first, tl.minimum(tl.maximum(last, first), T)


@triton.jit
def row_and_bounds(cu_seqlens_ptr, stride, sequence, T):
    """Row of x, first step and end of one of the sequences."""
    if cu_seqlens_ptr is None:
        return sequence, 0, T
    else:
        first, last = sequence_bounds(cu_seqlens_ptr, stride, sequence, sequence + 1, T)
        return sequence * 0, first, last


@triton.jit
def load_taps(weight_ptr, channel, strides, mask, W: tl.constexpr):
    """The weights of the channels, a tile for each tap, fp32."""
    taps = ()
    for k in tl.static_range(W):
        offsets = channel.to(tl.int64) * strides[0] + k * strides[1]
        taps += (tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32),)
    return taps


@triton.jit
def load_bias(bias_ptr, channel, stride, mask):
    """The bias of the channels, fp32; zeros where there is none."""
    if bias_ptr is None:
        return tl.zeros(channel.shape, tl.float32)
    else:
        return tl.load(bias_ptr + channel.to(tl.int64) * stride, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_step(ptr, t, stride, last, mask):
    """The steps t of an array as they are; zeros from `last` on, and of an absent array."""
    if ptr is None:
        return tl.zeros(mask.shape, tl.float32)
    else:
        return tl.load(ptr + t.to(tl.int64) * stride, mask=(t < last) & mask, other=0.0)


@triton.jit
def load_past(x_ptr, initial_ptr, t, stride, initial_stride, first, last, mask, W: tl.constexpr):
    """Inputs at steps t as fp32, taken from the initial state (or zeros) before the first."""
    past = load_step(x_ptr, t, stride, last, (t >= first) & mask).to(tl.float32)
    if initial_ptr is not None:
        entry = t - first + (W - 1)
        within = (t < first) & (entry >= 0) & mask
        past += tl.load(initial_ptr + entry.to(tl.int64) * initial_stride, mask=within, other=0.0).to(tl.float32)
    return past


@triton.jit
def tile_of(ptr, row, channel, row_stride, channel_stride):
    """Pointers to the first step of channels in a row, or entry in a state; None where the array is absent."""
    if ptr is None:
        return
    else:
        return ptr + (tl.cast(row, tl.int64) * row_stride + channel.to(tl.int64) * channel_stride)


@triton.jit
def convolve(taps, window, bias, W: tl.constexpr):
    """bias + sum over k of taps[k] * window[k], from the oldest input to the newest."""
    total = bias
    for k in tl.static_range(W):
        total = tl.fma(taps[k], window[k], total)
    return total


@triton.jit
def tile_channels(block, channels: tl.constexpr, LANES: tl.constexpr, BLOCK_D: tl.constexpr):
    """Channel numbers of a tile (LANES, BLOCK_D), and which of them exist."""
    d = block * BLOCK_D + tl.arange(0, BLOCK_D)[None, :] + tl.zeros([LANES, BLOCK_D], tl.int32)
    if channels % BLOCK_D == 0:
        return d, tl.full([LANES, BLOCK_D], True, tl.int1)
    else:
        return d, d < channels


@triton.jit
def forward_segment(
    x_ptr, initial_ptr, y_ptr, taps, bias, first, last, begin, end, steps, live, mask, x_stride, initial_stride,
    W: tl.constexpr, SILU: tl.constexpr, FAST: tl.constexpr, PACKED: tl.constexpr, CHANNELS: tl.constexpr,
    LANES: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Steps begin to end of the sequence first..last; pointers are tiles at step 0 of the row and of the state."""
    start = begin + tl.arange(0, LANES)[:, None] * steps
    window = ()
    for j in tl.static_range(W - 1):
        t = start - (W - 1) + j
        window += (load_past(x_ptr, initial_ptr, t, x_stride, initial_stride, first, last, mask & live, W),)
    for done in tl.range(0, tl.minimum(steps, end - begin), UNROLL, num_stages=STAGES):
        loaded = ()
        for i in tl.static_range(UNROLL):
            loaded += (load_step(x_ptr, start + done + i, x_stride, end, mask),)
        for i in tl.static_range(UNROLL):
            t = start + done + i
            window += (loaded[i].to(tl.float32),)
            y = convolve(taps, window, bias, W)
            if SILU:
                y *= sigmoid(y, FAST)
            if PACKED:
                y = tl.where(live, y, 0.0)
            tl.store(y_ptr + t.to(tl.int64) * CHANNELS, y.to(y_ptr.dtype.element_ty), mask=(t < end) & mask)
            window = window[1:]


@triton.jit(do_not_specialize=["T", "sequences", "steps"])
def forward_channels(
    x_ptr,
    weight_ptr,
    bias_ptr,
    initial_ptr,
    cu_seqlens_ptr,
    y_ptr,
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
    """y, for arrays of any strides; best where channels lie next to each other."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    row, chunk, block = place(tl.cdiv(T, LANES * steps), D, BLOCK_D)
    d, mask = tile_channels(block, D, LANES, BLOCK_D)
    taps = load_taps(weight_ptr, d, weight_strides, mask, W)
    bias = load_bias(bias_ptr, d, bias_strides[0], mask)
    x = tile_of(x_ptr, row, d, x_strides[0], x_strides[2])
    y = tile_of(y_ptr, row, d, T.to(tl.int64) * D, 1)
    begin = chunk * LANES * steps
    end = tl.minimum(begin + LANES * steps, T)
    if cu_seqlens_ptr is None:
        initial = tile_of(initial_ptr, row, d, initial_strides[0], initial_strides[1])
        forward_segment(
            x, initial, y, taps, bias, 0, T, begin, end, steps, True, mask, x_strides[1], initial_strides[2],
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
                initial = tile_of(initial_ptr, inside, d, initial_strides[0], initial_strides[1])
                forward_segment(
                    x, initial, y, taps, bias, first, last, begin, stop, steps, live, mask, x_strides[1],
                    initial_strides[2], W, SILU, FAST, True, D, LANES, UNROLL, STAGES,
                )  # fmt: skip
                begin = stop
            sequence += 1


@triton.jit(do_not_specialize=["T"])
def final_states(
    x_ptr,
    initial_ptr,
    cu_seqlens_ptr,
    final_ptr,
    x_strides,
    initial_strides,
    cu_seqlens_strides,
    T,
    D: tl.constexpr,
    W: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The last W - 1 inputs of each sequence, those of its initial state (or zeros) where it is shorter."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    sequence, _, block = place(1, D, BLOCK_D)
    d, mask = tile_channels(block, D, 1, BLOCK_D)
    row, first, last = row_and_bounds(cu_seqlens_ptr, cu_seqlens_strides[0], sequence, T)
    x = tile_of(x_ptr, row, d, x_strides[0], x_strides[2])
    initial = tile_of(initial_ptr, sequence, d, initial_strides[0], initial_strides[1])
    for j in tl.static_range(W - 1):
        t = last - (W - 1) + j + tl.zeros([1, 1], tl.int32)
        entry = load_past(x, initial, t, x_strides[1], initial_strides[2], first, last, mask, W)
        place_of = (sequence.to(tl.int64) * D + d) * (W - 1) + j
        tl.store(final_ptr + place_of, entry.to(final_ptr.dtype.element_ty), mask=mask)


@triton.jit
def time_of(chunk, tile, tiles, BLOCKS: tl.constexpr, VECTOR: tl.constexpr):
    """First step of each vector of a tile, shaped (BLOCKS, 1)."""
    return ((chunk * tiles + tile) * BLOCKS + tl.arange(0, BLOCKS)[:, None]) * VECTOR


@triton.jit
def split_vectors(vectors, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr, VECTOR: tl.constexpr):
    """(BLOCKS, CHANNELS, VECTOR) as VECTOR planes (BLOCKS, CHANNELS), within each thread."""
    if VECTOR == 8:
        even, odd = tl.split(vectors.reshape([BLOCKS, CHANNELS, 2, 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        v0, v4 = tl.split(a)
        v2, v6 = tl.split(c)
        v1, v5 = tl.split(b)
        v3, v7 = tl.split(d)
        return (v0, v1, v2, v3, v4, v5, v6, v7)
    else:
        even, odd = tl.split(vectors.reshape([BLOCKS, CHANNELS, 2, 2]))
        v0, v2 = tl.split(even)
        v1, v3 = tl.split(odd)
        return (v0, v1, v2, v3)


@triton.jit
def join_vectors(planes, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr, VECTOR: tl.constexpr):
    """VECTOR planes as (BLOCKS, CHANNELS, VECTOR)."""
    if VECTOR == 8:
        even = tl.join(tl.join(planes[0], planes[4]), tl.join(planes[2], planes[6]))
        odd = tl.join(tl.join(planes[1], planes[5]), tl.join(planes[3], planes[7]))
    else:
        even = tl.join(planes[0], planes[2])
        odd = tl.join(planes[1], planes[3])
    return tl.join(even, odd).reshape([BLOCKS, CHANNELS, VECTOR])


@triton.jit
def load_vectors(
    ptr, t, stride, T, mask, FIRST: tl.constexpr, LAST: tl.constexpr, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr,
    VECTOR: tl.constexpr, EVEN: tl.constexpr, IN_TIME: tl.constexpr,
):  # fmt: skip
    """Steps of vectors at t as VECTOR planes; zeros outside of 0..T. Those outside of FIRST..LAST are not asked for.

    Where time is contiguous (IN_TIME) vectors are loaded whole. With EVEN, T is a multiple of VECTOR: a vector exists
    as a whole or not at all.
    """
    number = tl.arange(0, VECTOR)[None, None, :]
    steps = t[:, :, None] + number
    if EVEN and IN_TIME:
        within = ((t >= 0) & (t < T) & mask)[:, :, None]
    else:
        within = (steps >= 0) & (steps < T) & mask[:, :, None]
    if not IN_TIME:
        within = within & (number >= FIRST) & (number < LAST)
    return split_vectors(
        tl.load(ptr[:, :, None] + steps.to(tl.int64) * stride, mask=within, other=0.0), BLOCKS, CHANNELS, VECTOR
    )


@triton.jit
def load_planes(
    ptr, t, stride, T, mask, FROM: tl.constexpr, TO: tl.constexpr, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr,
    VECTOR: tl.constexpr, EVEN: tl.constexpr, IN_TIME: tl.constexpr,
):  # fmt: skip
    """The steps t + FROM to t + TO - 1, with up to a vector on either side, as fp32 planes; of None, zeros."""
    planes = ()
    if ptr is None:
        for _ in tl.static_range(TO - FROM):
            planes += (tl.zeros([BLOCKS, CHANNELS], tl.float32),)
    else:
        here = load_vectors(ptr, t, stride, T, mask, 0, VECTOR, BLOCKS, CHANNELS, VECTOR, EVEN, IN_TIME)
        if FROM < 0:
            before = load_vectors(
                ptr, t - VECTOR, stride, T, mask, VECTOR + FROM, VECTOR, BLOCKS, CHANNELS, VECTOR, EVEN, IN_TIME
            )
            for step in tl.static_range(VECTOR + FROM, VECTOR):
                planes += (before[step].to(tl.float32),)
        for step in tl.static_range(VECTOR):
            planes += (here[step].to(tl.float32),)
        if TO > VECTOR:
            after = load_vectors(
                ptr, t + VECTOR, stride, T, mask, 0, TO - VECTOR, BLOCKS, CHANNELS, VECTOR, EVEN, IN_TIME
            )
            for step in tl.static_range(TO - VECTOR):
                planes += (after[step].to(tl.float32),)
    return planes


@triton.jit
def add_initial(planes, initial_ptr, t, stride, mask, W: tl.constexpr):
    """Put the initial state into the first W - 1 planes, the steps from t - (W - 1) on, where these are before 0."""
    if initial_ptr is None:
        return planes
    else:
        filled = ()
        for j in tl.static_range(len(planes)):
            if j < W - 1:
                entry = t + j
                within = (entry < W - 1) & mask
                state = tl.load(initial_ptr + entry.to(tl.int64) * stride, mask=within, other=0.0)
                filled += (planes[j] + state.to(tl.float32),)
            else:
                filled += (planes[j],)
        return filled


@triton.jit
def store_vectors(
    ptr, planes, t, T, mask, D: tl.constexpr, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr, VECTOR: tl.constexpr
):
    """Write planes to a dense array, whose channels are contiguous: the tile is turned on its way."""
    steps = t[:, :, None] + tl.arange(0, VECTOR)[None, None, :]
    made = join_vectors(planes, BLOCKS, CHANNELS, VECTOR)
    tl.store(ptr[:, :, None] + steps.to(tl.int64) * D, made, mask=(steps < T) & mask[:, :, None])


@triton.jit
def time_tile(block, channels: tl.constexpr, BLOCKS: tl.constexpr, CHANNELS: tl.constexpr):
    """Channel numbers of a tile (BLOCKS, CHANNELS), and which of them exist."""
    d = block * CHANNELS + tl.arange(0, CHANNELS)[None, :] + tl.zeros([BLOCKS, CHANNELS], tl.int32)
    if channels % CHANNELS == 0:
        return d, tl.full([BLOCKS, CHANNELS], True, tl.int1)
    else:
        return d, d < channels


@triton.jit(do_not_specialize=["T", "tiles"])
def forward_time(
    x_ptr,
    weight_ptr,
    bias_ptr,
    initial_ptr,
    y_ptr,
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
    OVERLAP: tl.constexpr,
):
    """y, for rows in which the steps of a channel lie next to each other: `tiles` tiles of BLOCKS vectors of time."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    row, chunk, block = place(tl.cdiv(T, tiles * BLOCKS * VECTOR), D, CHANNELS)
    d, mask = time_tile(block, D, BLOCKS, CHANNELS)
    taps = load_taps(weight_ptr, d, weight_strides, mask, W)
    bias = load_bias(bias_ptr, d, bias_strides[0], mask)
    x_ptr = tile_of(x_ptr, row, d, x_strides[0], x_strides[2])
    initial_ptr = tile_of(initial_ptr, row, d, initial_strides[0], initial_strides[1])
    y_ptr = tile_of(y_ptr, row, d, T.to(tl.int64) * D, 1)
    for tile in range(tiles):
        t = time_of(chunk, tile, tiles, BLOCKS, VECTOR)
        x = load_planes(
            x_ptr, t, x_strides[1], T, mask, 1 - W, VECTOR, BLOCKS, CHANNELS, VECTOR, EVEN, True
        )  # fmt: skip
        x = add_initial(x, initial_ptr, t, initial_strides[2], mask, W)
        planes = ()
        for i in tl.static_range(VECTOR):
            y = convolve(taps, x[i : i + W], bias, W)
            if SILU:
                y *= sigmoid(y, FAST)
            planes += (y.to(y_ptr.dtype.element_ty),)
        store_vectors(y_ptr, planes, t, T, mask, D, BLOCKS, CHANNELS, VECTOR)
