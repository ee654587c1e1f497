# mypy: ignore-errors
"""causal_conv1d, forward. Symbols and formulas: ../README.md.

A program takes a chunk of consecutive steps of one row, `walk` for each lane of its tile. Lane r walks over the steps
r * walk, r * walk + 1, ... of the chunk; the last W - 1 inputs stay in registers, so every input is loaded once. Packed
sequences are cut out of the chunk one after another.
"""

import triton
import triton.language as tl

from retrograd.core.kernels import numerics
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .arrays import Filters, Line, Segment


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
def tile_of_program(chunks, channels: tl.constexpr, BLOCK_D: tl.constexpr):
    """(row, chunk of time, block of channels) of this program; neighbours share a chunk."""
    blocks: tl.constexpr = (channels + BLOCK_D - 1) // BLOCK_D
    program = tl.program_id(0)
    return program // blocks // chunks, program // blocks % chunks, program % blocks


@triton.jit
def find_sequence(cu_seqlens, sequences, t):
    """The last sequence that begins at or before step t: -1 to `sequences`, both of which are outside."""
    low = sequences * 0 - 1
    high = sequences + 1
    while high - low > 1:
        middle = (low + high) // 2
        begun = tl.load(cu_seqlens.pointer + middle * cu_seqlens.step) <= t
        low = tl.where(begun, middle, low)
        high = tl.where(begun, high, middle)
    return low


@triton.jit
def sequence_bounds(cu_seqlens, sequence, sequences, T):
    """First step and end of a sequence, never outside of 0..T; what is outside of all has its own."""
    pointer = cu_seqlens.pointer
    first = tl.load(pointer + sequence * cu_seqlens.step, mask=sequence >= 0, other=0)
    last = tl.load(pointer + (sequence + 1) * cu_seqlens.step, mask=sequence < sequences, other=T)
    first = tl.minimum(tl.maximum(first, 0), T)
    return first, tl.minimum(tl.maximum(last, first), T)


@triton.jit
def row_and_bounds(cu_seqlens, sequence, T):
    """Row of x, first step and end of one of the sequences."""
    if cu_seqlens.pointer is None:
        return sequence, 0, T
    else:
        first, last = sequence_bounds(cu_seqlens, sequence, sequence + 1, T)
        return sequence * 0, first, last


@triton.jit
def load_filters(weight, bias, channel, mask, W: tl.constexpr):
    """The filters of the channels; a bias of zeros where there is none."""
    taps = ()
    for k in tl.static_range(W):
        offsets = channel.to(tl.int64) * weight.channel + k * weight.tap
        taps += (tl.load(weight.pointer + offsets, mask=mask, other=0.0).to(tl.float32),)
    if bias.pointer is None:
        return Filters(taps, tl.zeros(channel.shape, tl.float32))
    else:
        offsets = channel.to(tl.int64) * bias.step
        return Filters(taps, tl.load(bias.pointer + offsets, mask=mask, other=0.0).to(tl.float32))


@triton.jit
def load_step(line, t, last, mask):
    """The steps t of an array as they are; zeros from `last` on, and of an absent array."""
    if line is None:
        return tl.zeros(mask.shape, tl.float32)
    else:
        return tl.load(line.pointer + t.to(tl.int64) * line.step, mask=(t < last) & mask, other=0.0)


@triton.jit
def load_past(x, initial, t, first, last, mask, W: tl.constexpr):
    """Inputs at steps t as fp32, taken from the initial state (or zeros) before the first."""
    past = load_step(x, t, last, (t >= first) & mask).to(tl.float32)
    if initial is not None:
        entry = t - first + (W - 1)
        within = (t < first) & (entry >= 0) & mask
        past += tl.load(initial.pointer + entry.to(tl.int64) * initial.step, mask=within, other=0.0).to(tl.float32)
    return past


@triton.jit
def line_of(array, row, channel):
    """The steps of channels in a row, or the entries of a state; None where the array is absent."""
    if array.pointer is None:
        return
    else:
        offsets = tl.cast(row, tl.int64) * array.row + channel.to(tl.int64) * array.channel
        return Line(array.pointer + offsets, array.step)


@triton.jit
def dense_of(pointer, row, channel, T, D: tl.constexpr):
    """Pointers to step 0 of channels in a row of a dense array; None where it is absent."""
    if pointer is None:
        return
    else:
        return pointer + (tl.cast(row, tl.int64) * (T.to(tl.int64) * D) + channel.to(tl.int64))


@triton.jit
def convolve(filters, window):
    """bias + sum over k of taps[k] * window[k], from the oldest input to the newest."""
    total = filters.bias
    for k in tl.static_range(len(filters.taps)):
        total = tl.fma(filters.taps[k], window[k], total)
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
    x,
    initial,
    y,
    filters,
    segment,
    walk,
    mask,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
):
    """y of a segment."""
    W: tl.constexpr = SIZES.taps
    UNROLL: tl.constexpr = TILE.unroll
    end = segment.end
    start = segment.begin + tl.arange(0, TILE.lanes)[:, None] * walk
    window = ()
    for j in tl.static_range(W - 1):
        t = start - (W - 1) + j
        window += (load_past(x, initial, t, segment.first, segment.last, mask & segment.live, W),)
    for done in tl.range(0, tl.minimum(walk, end - segment.begin), UNROLL, num_stages=TILE.stages):
        loaded = ()
        for i in tl.static_range(UNROLL):
            loaded += (load_step(x, start + done + i, end, mask),)
        for i in tl.static_range(UNROLL):
            t = start + done + i
            window += (loaded[i].to(tl.float32),)
            value = convolve(filters, window)
            if ACTIVATION.silu:
                value *= sigmoid(value, ACTIVATION.fast)
            if PACKED:
                value = tl.where(segment.live, value, 0.0)
            tl.store(y + t.to(tl.int64) * SIZES.channels, value.to(y.dtype.element_ty), mask=(t < end) & mask)
            window = window[1:]


@triton.jit(do_not_specialize=["lengths"])
def forward_channels(
    x,
    weight,
    bias,
    initial_state,
    cu_seqlens,
    y_ptr,
    lengths,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """y, for arrays of any strides; best where channels lie next to each other."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    T, sequences, walk = lengths.steps, lengths.sequences, lengths.walk
    row, chunk, block = tile_of_program(tl.cdiv(T, TILE.lanes * walk), SIZES.channels, TILE.channels)
    d, mask = tile_channels(block, SIZES.channels, TILE.lanes, TILE.channels)
    filters = load_filters(weight, bias, d, mask, SIZES.taps)
    x = line_of(x, row, d)
    y = dense_of(y_ptr, row, d, T, SIZES.channels)
    begin = chunk * TILE.lanes * walk
    end = tl.minimum(begin + TILE.lanes * walk, T)
    if cu_seqlens.pointer is None:
        initial = line_of(initial_state, row, d)
        segment = Segment(0, T, begin, end, True)
        forward_segment(x, initial, y, filters, segment, walk, mask, SIZES, ACTIVATION, TILE, PACKED=False)
    else:
        sequence = find_sequence(cu_seqlens, sequences, begin)
        while begin < end:
            first, last = sequence_bounds(cu_seqlens, sequence, sequences, T)
            stop = tl.minimum(last, end)
            if stop > begin:
                live = (sequence >= 0) & (sequence < sequences)
                inside = tl.minimum(tl.maximum(sequence, 0), sequences - 1)
                initial = line_of(initial_state, inside, d)
                segment = Segment(first, last, begin, stop, live)
                forward_segment(x, initial, y, filters, segment, walk, mask, SIZES, ACTIVATION, TILE, PACKED=True)
                begin = stop
            sequence += 1


@triton.jit(do_not_specialize=["T"])
def final_states(
    x,
    initial_state,
    cu_seqlens,
    final_ptr,
    T,
    SIZES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The last W - 1 inputs of each sequence, those of its initial state (or zeros) where it is shorter."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    D: tl.constexpr = SIZES.channels
    W: tl.constexpr = SIZES.taps
    sequence, _, block = tile_of_program(1, D, BLOCK_D)
    d, mask = tile_channels(block, D, 1, BLOCK_D)
    row, first, last = row_and_bounds(cu_seqlens, sequence, T)
    x = line_of(x, row, d)
    initial = line_of(initial_state, sequence, d)
    for j in tl.static_range(W - 1):
        t = last - (W - 1) + j + tl.zeros([1, 1], tl.int32)
        entry = load_past(x, initial, t, first, last, mask, W)
        offsets = (sequence.to(tl.int64) * D + d) * (W - 1) + j
        tl.store(final_ptr + offsets, entry.to(final_ptr.dtype.element_ty), mask=mask)


@triton.jit
def time_of(chunk, tile, tiles, TILE: tl.constexpr):
    """First step of each vector of a tile, shaped (blocks, 1)."""
    return ((chunk * tiles + tile) * TILE.blocks + tl.arange(0, TILE.blocks)[:, None]) * TILE.vector


@triton.jit
def split_vectors(vectors, TILE: tl.constexpr):
    """(blocks, channels, vector) as planes (blocks, channels), one for each step of a vector, within each thread."""
    if TILE.vector == 8:
        even, odd = tl.split(vectors.reshape([TILE.blocks, TILE.channels, 2, 2, 2]))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        v0, v4 = tl.split(a)
        v2, v6 = tl.split(c)
        v1, v5 = tl.split(b)
        v3, v7 = tl.split(d)
        return (v0, v1, v2, v3, v4, v5, v6, v7)
    else:
        even, odd = tl.split(vectors.reshape([TILE.blocks, TILE.channels, 2, 2]))
        v0, v2 = tl.split(even)
        v1, v3 = tl.split(odd)
        return (v0, v1, v2, v3)


@triton.jit
def join_vectors(planes, TILE: tl.constexpr):
    """The planes of the steps of a vector as (blocks, channels, vector)."""
    if TILE.vector == 8:
        v0, v1, v2, v3, v4, v5, v6, v7 = planes
        even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
        odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
    else:
        v0, v1, v2, v3 = planes
        even = tl.join(v0, v2)
        odd = tl.join(v1, v3)
    return tl.join(even, odd).reshape([TILE.blocks, TILE.channels, TILE.vector])


@triton.jit
def load_vectors(line, t, T, mask, FIRST: tl.constexpr, LAST: tl.constexpr, TILE: tl.constexpr, IN_TIME: tl.constexpr):
    """The vectors of steps at t as planes; zeros outside of 0..T. Of each, only the steps FIRST to LAST - 1 are needed.

    Where time is contiguous (IN_TIME) vectors are loaded whole; with TILE.even each exists as a whole or not at all.
    """
    number = tl.arange(0, TILE.vector)[None, None, :]
    steps = t[:, :, None] + number
    if TILE.even and IN_TIME:
        within = ((t >= 0) & (t < T) & mask)[:, :, None]
    else:
        within = (steps >= 0) & (steps < T) & mask[:, :, None]
    if not IN_TIME:
        within = within & (number >= FIRST) & (number < LAST)
    offsets = steps.to(tl.int64) * line.step
    return split_vectors(tl.load(line.pointer[:, :, None] + offsets, mask=within, other=0.0), TILE)


@triton.jit
def some_planes(line, t, T, mask, FIRST: tl.constexpr, LAST: tl.constexpr, TILE: tl.constexpr, IN_TIME: tl.constexpr):
    """The steps FIRST to LAST - 1 of the vectors at t, as fp32 planes."""
    vectors = load_vectors(line, t, T, mask, FIRST, LAST, TILE, IN_TIME)
    planes = ()
    for step in tl.static_range(FIRST, LAST):
        planes += (vectors[step].to(tl.float32),)
    return planes


@triton.jit
def load_planes(line, t, T, mask, FROM: tl.constexpr, TO: tl.constexpr, TILE: tl.constexpr, IN_TIME: tl.constexpr):
    """The steps t + FROM to t + TO - 1 as fp32 planes, from the vector at t and those around it; of None, zeros."""
    VECTOR: tl.constexpr = TILE.vector
    planes = ()
    if line is None:
        for _ in tl.static_range(TO - FROM):
            planes += (tl.zeros([TILE.blocks, TILE.channels], tl.float32),)
    else:
        BEFORE: tl.constexpr = (VECTOR - 1 - FROM) // VECTOR  # vectors
        AFTER: tl.constexpr = (TO - 1) // VECTOR
        here = load_vectors(line, t, T, mask, 0, VECTOR, TILE, IN_TIME)
        for number in tl.static_range(BEFORE):
            near = t - (BEFORE - number) * VECTOR
            planes += some_planes(line, near, T, mask, max(0, FROM + (BEFORE - number) * VECTOR), VECTOR, TILE, IN_TIME)
        for step in tl.static_range(VECTOR):
            planes += (here[step].to(tl.float32),)
        for number in tl.static_range(1, AFTER + 1):
            near = t + number * VECTOR
            planes += some_planes(line, near, T, mask, 0, min(VECTOR, TO - number * VECTOR), TILE, IN_TIME)
    return planes


@triton.jit
def add_initial(planes, initial, t, mask, W: tl.constexpr):
    """Put the initial state into the first W - 1 planes, the steps from t - (W - 1) on, where these are before 0."""
    if initial is None:
        return planes
    else:
        filled = ()
        for j in tl.static_range(len(planes)):
            if j < W - 1:
                entry = t + j
                within = (entry < W - 1) & mask
                state = tl.load(initial.pointer + entry.to(tl.int64) * initial.step, mask=within, other=0.0)
                filled += (planes[j] + state.to(tl.float32),)
            else:
                filled += (planes[j],)
        return filled


@triton.jit
def store_vectors(ptr, planes, t, T, mask, D: tl.constexpr, TILE: tl.constexpr):
    """Write planes to a dense array, whose channels are contiguous: the tile is turned on its way."""
    steps = t[:, :, None] + tl.arange(0, TILE.vector)[None, None, :]
    made = join_vectors(planes, TILE)
    tl.store(ptr[:, :, None] + steps.to(tl.int64) * D, made, mask=(steps < T) & mask[:, :, None])


@triton.jit(do_not_specialize=["lengths"])
def forward_time(
    x,
    weight,
    bias,
    initial_state,
    y_ptr,
    lengths,
    SIZES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """y, for rows in which the steps of a channel lie next to each other: `tiles` tiles of vectors of time."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    W: tl.constexpr = SIZES.taps
    VECTOR: tl.constexpr = TILE.vector
    T, tiles = lengths.steps, lengths.tiles
    row, chunk, block = tile_of_program(tl.cdiv(T, tiles * TILE.blocks * VECTOR), SIZES.channels, TILE.channels)
    d, mask = tile_channels(block, SIZES.channels, TILE.blocks, TILE.channels)
    filters = load_filters(weight, bias, d, mask, W)
    x = line_of(x, row, d)
    initial = line_of(initial_state, row, d)
    y = dense_of(y_ptr, row, d, T, SIZES.channels)
    for tile in range(tiles):
        t = time_of(chunk, tile, tiles, TILE)
        inputs = load_planes(x, t, T, mask, 1 - W, VECTOR, TILE, True)
        inputs = add_initial(inputs, initial, t, mask, W)
        planes = ()
        for i in tl.static_range(VECTOR):
            value = convolve(filters, inputs[i : i + W])
            if ACTIVATION.silu:
                value *= sigmoid(value, ACTIVATION.fast)
            planes += (value.to(y_ptr.dtype.element_ty),)
        store_vectors(y, planes, t, T, mask, SIZES.channels, TILE)
