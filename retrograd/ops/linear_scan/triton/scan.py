"""What the scan's kernels share: numbers, the composition of steps, and how tiles hand on their state.

A number is a tuple of fp32 tensors: (value,), or (real part, imaginary part). A step, and any run of steps, is a map
x -> P * x + l. A tile is ROWS runs of STEPS steps, one after the other in time, for CHANNELS neighbouring channels. A
lane of a vector of ROWS * CHANNELS is one run of one channel, and the vector is as long as the program has threads: so
a thread runs its own steps, and nothing in the order of the arithmetic is left to the compiler's layouts.
Multiplications are fused with additions by name, because the compiler would do it in one kernel and not in the next.
"""

# ruff: noqa: E741
# mypy: disable-error-code="no-untyped-def, assignment"

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

# A state that never comes would stop the GPU: after so many looks, some ten seconds, the program goes on with NaN.
MOST_LOOKS = tl.constexpr(1 << 24)


@triton.jit
def load(ptr, offsets, mask, other: tl.constexpr, COMPLEX: tl.constexpr):
    """A number, as it lies in memory; offsets count numbers. `other` is the real part where the mask is off."""
    if COMPLEX:
        re = tl.load(ptr + 2 * offsets, mask=mask, other=other)
        im = tl.load(ptr + 2 * offsets + 1, mask=mask, other=0.0)
        return (re, im)
    else:
        return (tl.load(ptr + offsets, mask=mask, other=other),)


@triton.jit
def store(ptr, offsets, x, mask):
    """Write a number."""
    if len(x) == 2:
        tl.store(ptr + 2 * offsets, x[0], mask=mask)
        tl.store(ptr + 2 * offsets + 1, x[1], mask=mask)
    else:
        tl.store(ptr + offsets, x[0].to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def fp32(x, CONJ: tl.constexpr = False):
    """A number as fp32, or its conjugate."""
    if len(x) == 2:
        if CONJ:
            return (x[0], -x[1])
        else:
            return (x[0], x[1])
    else:
        return (x[0].to(tl.float32),)


@triton.jit
def constant(value: tl.constexpr, like, COMPLEX: tl.constexpr):
    """The number `value` in every lane."""
    re = tl.full(like.shape, value, tl.float32)
    if COMPLEX:
        return (re, tl.full(like.shape, 0.0, tl.float32))
    else:
        return (re,)


@triton.jit
def multiply(x, y):
    """x * y."""
    if len(x) == 2:
        return (tl.fma(x[0], y[0], -(x[1] * y[1])), tl.fma(x[0], y[1], x[1] * y[0]))
    else:
        return (x[0] * y[0],)


@triton.jit
def multiply_add(x, y, z):
    """x * y + z."""
    if len(x) == 2:
        return (tl.fma(x[0], y[0], tl.fma(-x[1], y[1], z[0])), tl.fma(x[0], y[1], tl.fma(x[1], y[0], z[1])))
    else:
        return (tl.fma(x[0], y[0], z[0]),)


@triton.jit
def choose(condition, x, y):
    """x where the condition holds, else y."""
    if len(x) == 2:
        return (tl.where(condition, x[0], y[0]), tl.where(condition, x[1], y[1]))
    else:
        return (tl.where(condition, x[0], y[0]),)


@triton.jit
def advance(P, x, l):
    """P * x + l, and l where x is 0: no state stays no state, even if the product P has overflowed."""
    nothing = x[0] == 0
    if len(x) == 2:
        nothing = nothing & (x[1] == 0)
    return choose(nothing, l, multiply_add(P, x, l))


@triton.jit
def pair(x, y):
    """Two fp32 in a word of 64 bits."""
    low = y.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (x.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low


@triton.jit
def first_of(word):
    """The x of a pair."""
    return (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def second_of(word):
    """The y of a pair."""
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def take(P, l, lanes):
    """P and l of other lanes, together: each exchange costs two barriers."""
    re = tl.gather(pair(P[0], l[0]), lanes, 0)
    if len(P) == 2:
        im = tl.gather(pair(P[1], l[1]), lanes, 0)
        return (first_of(re), first_of(im)), (second_of(re), second_of(im))
    else:
        return (first_of(re),), (second_of(re),)


@triton.jit
def compose(P, l, lane, LEVELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Row r of the result is rows 0 to r, one after the other, as one map; 2^LEVELS rows."""
    for level in tl.static_range(LEVELS):
        earlier = tl.maximum(lane - (CHANNELS << level), 0)
        there = lane >= (CHANNELS << level)
        P_earlier, l_earlier = take(P, l, earlier)
        l = choose(there, advance(P, l_earlier, l), l)
        P = choose(there, multiply(P, P_earlier), P)
    return P, l


@triton.jit
def before(P, l, lane, CHANNELS: tl.constexpr):
    """The map of all earlier rows, for each row; the first has none, and the identity."""
    earlier = tl.maximum(lane - CHANNELS, 0)
    first = lane < CHANNELS
    P_before, l_before = take(P, l, earlier)
    one = constant(1.0, lane, len(P) == 2)
    zero = constant(0.0, lane, len(P) == 2)
    return choose(first, one, P_before), choose(first, zero, l_before)


@triton.jit
def row(P, l, r, lane, CHANNELS: tl.constexpr):
    """P and l of row r in every row."""
    return take(P, l, r * CHANNELS + lane % CHANNELS)


@triton.jit
def place(bounds_ptr, T, sequences, blocks, TILE: tl.constexpr):
    """What this program works on: (sequence, tile of it, first slot, slots between tiles, start, length, block).

    A slot is a number for a tile among all tiles of all sequences. Rows of a batch have as many tiles each, and take
    turns. Of packed sequences, s begins at slot bounds[s] // TILE + s, which leaves enough for every length; a program
    whose slot its sequence does not need gets a tile past the end. Later tiles have higher program numbers: a program
    waits for none that has not begun.
    """
    block = tl.program_id(0) % blocks
    slot = tl.program_id(0) // blocks
    if bounds_ptr is None:
        s = slot % sequences
        return s, slot // sequences, s, sequences, 0, T, block
    else:
        bounds = bounds_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        below = 0
        for first in range(0, sequences, 128):
            i = first + tl.arange(0, 128)
            inside = i < sequences
            start_slot = tl.load(bounds + i, mask=inside, other=0) // TILE + i
            below += tl.sum(((start_slot <= slot) & inside).to(tl.int32), axis=0)
        s = tl.maximum(below - 1, 0)
        start = tl.load(bounds + s)
        origin = start // TILE + s
        return s, slot - origin, origin, 1, start, tl.load(bounds + s + 1) - start, block


@triton.jit
def word_pointers(words_ptr, slot, kind: tl.constexpr, channel, D, PARTS: tl.constexpr):
    """Where a slot's words of one kind begin: 0 for P, 1 for l, 2 for the state before a group of tiles."""
    words = words_ptr.to(tl.pointer_type(tl.int64), bitcast=True)
    return words + (slot.to(tl.int64) * 3 + kind) * PARTS * D + channel


@triton.jit
def publish(pointers, x, mask, D):
    """Write a number for other programs: every part in a word of its own, with a mark, so neither comes alone."""
    for part in tl.static_range(len(x)):
        word = (x[part].to(tl.int32, bitcast=True).to(tl.int64) << 32) | 1
        tl.atomic_xchg(pointers + part * D, word, mask=mask, sem="relaxed")


@triton.jit
def look(pointers, mask, D, PARTS: tl.constexpr):
    """The words of a number, as they are now."""
    words = (tl.load(pointers, mask=mask, other=1, volatile=True),)
    if PARTS == 2:
        words += (tl.load(pointers + D, mask=mask, other=1, volatile=True),)
    return words


@triton.jit
def missing(words):
    """Whether any lane's number is not there yet."""
    marks = words[0]
    for part in tl.static_range(1, len(words)):
        marks = marks & words[part]
    return tl.min((marks & 1).to(tl.int32), axis=0) == 0


@triton.jit
def number(words):
    """The number in words, NaN where it never came."""
    x = ()
    for part in tl.static_range(len(words)):
        value = (words[part] >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        x += (tl.where((words[part] & 1) == 1, value, float("nan")),)
    return x


@triton.jit
def wait_for_map(P_pointers, l_pointers, mask, D, PARTS: tl.constexpr):
    """Wait until other programs have published P and l."""
    P = look(P_pointers, mask, D, PARTS)
    l = look(l_pointers, mask, D, PARTS)
    looks = 0
    while (missing(P) | missing(l)) & (looks < MOST_LOOKS):
        P = look(P_pointers, mask, D, PARTS)
        l = look(l_pointers, mask, D, PARTS)
        looks += 1
    return number(P), number(l)


@triton.jit
def wait_for_state(pointers, mask, D, PARTS: tl.constexpr):
    """Wait until another program has published a state."""
    state = look(pointers, mask, D, PARTS)
    looks = 0
    while missing(state) & (looks < MOST_LOOKS):
        state = look(pointers, mask, D, PARTS)
        looks += 1
    return number(state)


@triton.jit
def tile_state(
    P, l, initial, words_ptr, tile, origin, pitch, length, lane, channel, D,
    COMPLEX: tl.constexpr, STEPS: tl.constexpr, LEVELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The state before this tile, in every row, from the tiles before it; publishes what later tiles ask for.

    P and l are those of `compose`: their last row is the whole tile. 2^LEVELS tiles are a group. The state before a
    group comes from the group before it; within a group, the tiles' maps are composed as rows are.
    """
    ROWS: tl.constexpr = 1 << LEVELS
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    r = lane // CHANNELS
    inside = channel < D
    place_in_group = tile % ROWS
    group = tile - place_in_group
    another = (tile + 1) * (ROWS * STEPS) < length
    last_row = inside & (r == ROWS - 1)

    slot = origin + tile * pitch
    publish(word_pointers(words_ptr, slot, 0, channel, D, PARTS), P, last_row & another, D)
    publish(word_pointers(words_ptr, slot, 1, channel, D, PARTS), l, last_row & another, D)
    others = origin + (group + r) * pitch
    needed = inside & (r < place_in_group)
    P_tile, l_tile = wait_for_map(
        word_pointers(words_ptr, others, 0, channel, D, PARTS),
        word_pointers(words_ptr, others, 1, channel, D, PARTS),
        needed, D, PARTS,
    )  # fmt: skip
    own = r == place_in_group
    P_own, l_own = row(P, l, ROWS - 1, lane, CHANNELS)
    P_tile = choose(own, P_own, choose(needed, P_tile, constant(1.0, lane, COMPLEX)))
    l_tile = choose(own, l_own, choose(needed, l_tile, constant(0.0, lane, COMPLEX)))
    P_tile, l_tile = compose(P_tile, l_tile, lane, LEVELS, CHANNELS)

    P_before, l_before = row(P_tile, l_tile, tl.maximum(place_in_group - 1, 0), lane, CHANNELS)

    states = word_pointers(words_ptr, origin + (group + 0 * lane) * pitch, 2, channel, D, PARTS)
    state = choose(group + 0 * lane == 0, initial, wait_for_state(states, inside & (group > 0), D, PARTS))
    next_group = word_pointers(words_ptr, origin + (group + ROWS + 0 * lane) * pitch, 2, channel, D, PARTS)
    publish(next_group, advance(P_tile, state, l_tile), last_row & another & (place_in_group == ROWS - 1), D)
    inner = advance(P_before, state, l_before)
    return choose(place_in_group + 0 * lane == 0, state, inner)


@triton.jit(do_not_specialize=["words", "T", "sequences", "direction"])
def prepare(
    a_ptr,
    b_ptr,
    initial_ptr,
    cu_seqlens_ptr,
    words_ptr,
    bounds_ptr,
    words,
    T,
    sequences,
    direction,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Clear the words that tiles publish, and make bounds that rise from 0 to T of whatever is in cu_seqlens.

    The inputs of the scan, and its direction, are named so that two different scans never share one cleared array
    where a compiler merges equal launches.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    if words_ptr is not None:
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(words_ptr.to(tl.pointer_type(tl.int64), bitcast=True) + i, tl.zeros([BLOCK], tl.int64), mask=i < words)
    if bounds_ptr is not None:
        if tl.program_id(0) == 0:
            bounds = bounds_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
            highest = 0
            for first in range(0, sequences + 1, 128):
                s = first + tl.arange(0, 128)
                given = tl.load(cu_seqlens_ptr + s, mask=s <= sequences, other=0)
                rising = tl.maximum(tl.associative_scan(tl.minimum(given, T), 0, larger), highest)
                tl.store(bounds + s, rising, mask=s <= sequences)
                highest = tl.max(rising, axis=0)


@triton.jit
def larger(x, y):
    """The larger one."""
    return tl.maximum(x, y)


@triton.jit
def runs(bounds_ptr, T, D, sequences, blocks, STEPS: tl.constexpr, LEVELS: tl.constexpr, CHANNELS: tl.constexpr):
    """The program's runs: (sequence, tile, origin, pitch, start, length, block, lane, channel, each run's first step).

    Steps are counted from where the recurrence begins.
    """
    s, tile, origin, pitch, start, length, block = place(bounds_ptr, T, sequences, blocks, STEPS << LEVELS)
    lane = tl.arange(0, CHANNELS << LEVELS)
    channel = block * CHANNELS + lane % CHANNELS
    first = (tile << LEVELS) * STEPS + lane // CHANNELS * STEPS
    return s, tile, origin, pitch, start, length, block, lane, channel, first


@triton.jit
def unused(bounds_ptr, tile, length, STEPS: tl.constexpr, LEVELS: tl.constexpr):
    """Whether a packed sequence has no such tile; its first one it has, even if empty."""
    if bounds_ptr is None:
        return False
    else:
        return (tile < 0) | ((tile > 0) & (tile * (STEPS << LEVELS) >= length))


@triton.jit
def offset_of(step, start, length, row, channel, strides, REVERSE: tl.constexpr):
    """Where a step of a sequence lies in an array."""
    t = start + (length - 1 - step if REVERSE else step)
    return tl.cast(row, tl.int64) * strides[0] + t.to(tl.int64) * strides[1] + channel.to(tl.int64) * strides[2]


@triton.jit
def load_runs(
    ptr, first, stop, start, length, row, channel, D, strides, other: tl.constexpr,
    STEPS: tl.constexpr, REVERSE: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Every lane's steps from `first` on; `other` from `stop` on, and before the sequence begins.

    All are asked for before any is used.
    """
    offset = offset_of(first, start, length, row, channel, strides, REVERSE)
    stride = -strides[1] if REVERSE else strides[1]
    limit = tl.where(channel < D, stop, -1)
    steps = ()
    for i in tl.static_range(STEPS):
        mask = first + i < limit
        if i == 0:
            mask = mask & (first >= 0)
        steps += (load(ptr, offset + tl.cast(i, tl.int64) * stride, mask, other, COMPLEX),)
    return steps


@triton.jit
def load_state(ptr, s, lane, channel, D, strides, COMPLEX: tl.constexpr):
    """A row of states (sequences, D) as fp32; zeros where there is none."""
    if ptr is None:
        return constant(0.0, lane, COMPLEX)
    else:
        offset = tl.cast(s, tl.int64) * strides[0] + channel.to(tl.int64) * strides[1]
        return fp32(load(ptr, offset, channel < D, 0.0, COMPLEX))


@triton.jit
def is_last(tile, length, STEPS: tl.constexpr, LEVELS: tl.constexpr):
    """Whether a tile is its sequence's last; its last row then ends with the final state."""
    return (tile + 1) * (STEPS << LEVELS) >= length


@triton.jit
def fill_outside(
    ptr, bounds_ptr, s, tile, sequences, T, D, lane, channel, row_stride, channel_stride, mask,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COMPLEX: tl.constexpr,
):  # fmt: skip
    """Zeros before the first packed sequence and behind the last one."""
    if bounds_ptr is not None:
        bounds = bounds_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        if tile == 0:
            zero = constant(0.0, lane, COMPLEX)
            until = tl.where(s == 0, tl.load(bounds), 0)
            for t in range(0, until, ROWS):
                rows = t + lane // CHANNELS
                offset = rows.to(tl.int64) * row_stride + channel.to(tl.int64) * channel_stride
                store(ptr, offset, zero, mask & (rows < until))
            since = tl.where(s == sequences - 1, tl.load(bounds + sequences), T)
            for t in range(since, T, ROWS):
                rows = t + lane // CHANNELS
                offset = rows.to(tl.int64) * row_stride + channel.to(tl.int64) * channel_stride
                store(ptr, offset, zero, mask & (rows < T))


@triton.jit(do_not_specialize=["T", "sequences", "blocks", "initial_strides"])
def carry_states(
    P_ptr,
    l_ptr,
    initial_ptr,
    bounds_ptr,
    state_ptr,
    initial_strides,
    T,
    D,
    sequences,
    blocks,
    COMPLEX: tl.constexpr,
    STEPS: tl.constexpr,
    LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The state before every tile, from the tiles' maps (slots, D); a program for a sequence and block of channels."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    TILE: tl.constexpr = STEPS << LEVELS
    ROWS: tl.constexpr = 1 << LEVELS
    block = tl.program_id(0) % blocks
    s = tl.program_id(0) // blocks
    lane = tl.arange(0, CHANNELS << LEVELS)
    r = lane // CHANNELS
    channel = block * CHANNELS + lane % CHANNELS
    if bounds_ptr is None:
        origin = s
        pitch = sequences
        length = T
    else:
        bounds = bounds_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        start = tl.load(bounds + s)
        origin = start // TILE + s
        pitch = 1
        length = tl.load(bounds + s + 1) - start
    tiles = tl.maximum(tl.cdiv(length, TILE), 1)
    state = load_state(initial_ptr, s, lane, channel, D, initial_strides, COMPLEX)
    for group in range(0, tiles, ROWS):
        there = (channel < D) & (group + r < tiles)
        offset = (origin + (group + r) * pitch).to(tl.int64) * D + channel
        P = load(P_ptr, offset, there, 1.0, COMPLEX)
        l = load(l_ptr, offset, there, 0.0, COMPLEX)
        P, l = compose(P, l, lane, LEVELS, CHANNELS)
        P_before, l_before = before(P, l, lane, CHANNELS)
        store(state_ptr, offset, choose(r == 0, state, advance(P_before, state, l_before)), there)
        P, l = row(P, l, ROWS - 1, lane, CHANNELS)
        state = advance(P, state, l)
