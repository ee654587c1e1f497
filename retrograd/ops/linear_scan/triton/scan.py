"""What the scan's kernels share: numbers, the composition of steps, and how tiles hand on their state.

A number is a named tuple of fp32 tensors, `Real` or `Complex`. A step, and any run of steps, is a map
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

from .arrays import Complex, Real, Runs, States

# A state that never comes would stop the GPU: after so many looks, some ten seconds, the program goes on with NaN.
MOST_LOOKS = tl.constexpr(1 << 24)
# The words of a slot: its tile's map, and the state before the group of tiles that begins with it.
P_WORDS, L_WORDS, STATE_WORDS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def load(ptr, offsets, mask, other: tl.constexpr, COMPLEX: tl.constexpr):
    """A number, as it lies in memory; offsets count numbers. `other` is the real part where the mask is off."""
    if COMPLEX:
        re = tl.load(ptr + 2 * offsets, mask=mask, other=other)
        return Complex(re, tl.load(ptr + 2 * offsets + 1, mask=mask, other=0.0))
    else:
        return Real(tl.load(ptr + offsets, mask=mask, other=other))


@triton.jit
def store(ptr, offsets, x, mask):
    """Write a number."""
    if len(x) == 2:
        tl.store(ptr + 2 * offsets, x.re, mask=mask)
        tl.store(ptr + 2 * offsets + 1, x.im, mask=mask)
    else:
        tl.store(ptr + offsets, x.re.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def fp32(x, CONJ: tl.constexpr = False):
    """A number as fp32, or its conjugate."""
    if len(x) == 2:
        if CONJ:
            return Complex(x.re, -x.im)
        else:
            return Complex(x.re, x.im)
    else:
        return Real(x.re.to(tl.float32))


@triton.jit
def constant(value: tl.constexpr, like, COMPLEX: tl.constexpr):
    """The number `value` in every lane."""
    re = tl.full(like.shape, value, tl.float32)
    if COMPLEX:
        return Complex(re, tl.full(like.shape, 0.0, tl.float32))
    else:
        return Real(re)


@triton.jit
def multiply(x, y):
    """x * y."""
    if len(x) == 2:
        return Complex(tl.fma(x.re, y.re, -(x.im * y.im)), tl.fma(x.re, y.im, x.im * y.re))
    else:
        return Real(x.re * y.re)


@triton.jit
def multiply_add(x, y, z):
    """x * y + z."""
    if len(x) == 2:
        re = tl.fma(x.re, y.re, tl.fma(-x.im, y.im, z.re))
        return Complex(re, tl.fma(x.re, y.im, tl.fma(x.im, y.re, z.im)))
    else:
        return Real(tl.fma(x.re, y.re, z.re))


@triton.jit
def choose(condition, x, y):
    """x where the condition holds, else y."""
    if len(x) == 2:
        return Complex(tl.where(condition, x.re, y.re), tl.where(condition, x.im, y.im))
    else:
        return Real(tl.where(condition, x.re, y.re))


@triton.jit
def advance(P, x, l):
    """P * x + l, and l where x is 0: no state stays no state, even if the product P has overflowed."""
    nothing = x.re == 0
    if len(x) == 2:
        nothing = nothing & (x.im == 0)
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
    re = tl.gather(pair(P.re, l.re), lanes, 0)
    if len(P) == 2:
        im = tl.gather(pair(P.im, l.im), lanes, 0)
        return Complex(first_of(re), first_of(im)), Complex(second_of(re), second_of(im))
    else:
        return Real(first_of(re)), Real(second_of(re))


@triton.jit
def compose(P, l, lane, TILE: tl.constexpr):
    """Row r of the result is rows 0 to r, one after the other, as one map."""
    LEVELS: tl.constexpr = TILE.levels
    for level in tl.static_range(LEVELS):
        earlier = tl.maximum(lane - (TILE.channels << level), 0)
        there = lane >= (TILE.channels << level)
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
def tile_of_program(bounds_ptr, T, sequences, blocks, TILE: tl.constexpr):
    """(sequence, tile, origin, pitch, start, length, block) of this program, see `Runs`.

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
    """Where a slot's words of one kind begin."""
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
    re = tl.load(pointers, mask=mask, other=1, volatile=True)
    if PARTS == 2:
        return Complex(re, tl.load(pointers + D, mask=mask, other=1, volatile=True))
    else:
        return Real(re)


@triton.jit
def missing(words):
    """Whether any lane's number is not there yet."""
    marks = words.re
    if len(words) == 2:
        marks = marks & words.im
    return tl.min((marks & 1).to(tl.int32), axis=0) == 0


@triton.jit
def value(word):
    """The value in a word, NaN where it never came."""
    x = first_of(word)
    return tl.where((word & 1) == 1, x, float("nan"))


@triton.jit
def number(words):
    """The number in words."""
    if len(words) == 2:
        return Complex(value(words.re), value(words.im))
    else:
        return Real(value(words.re))


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
def tile_state(P, l, initial, words_ptr, runs, D, COMPLEX: tl.constexpr, TILE: tl.constexpr):
    """The state before this tile, in every row, from the tiles before it; publishes what later tiles ask for.

    P and l are those of `compose`: their last row is the whole tile. As many tiles as a tile has rows are a group. The
    state before a group comes from the group before it; within a group, the tiles' maps are composed as rows are.
    """
    ROWS: tl.constexpr = TILE.rows
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    tile, origin, pitch, lane, channel = runs.tile, runs.origin, runs.pitch, runs.lane, runs.channel
    r = lane // TILE.channels
    inside = channel < D
    place_in_group = tile % ROWS
    group = tile - place_in_group
    another = (tile + 1) * TILE.time < runs.length
    last_row = inside & (r == ROWS - 1)

    slot = origin + tile * pitch
    publish(word_pointers(words_ptr, slot, P_WORDS, channel, D, PARTS), P, last_row & another, D)
    publish(word_pointers(words_ptr, slot, L_WORDS, channel, D, PARTS), l, last_row & another, D)
    others = origin + (group + r) * pitch
    needed = inside & (r < place_in_group)
    P_pointers = word_pointers(words_ptr, others, P_WORDS, channel, D, PARTS)
    l_pointers = word_pointers(words_ptr, others, L_WORDS, channel, D, PARTS)
    P_tile, l_tile = wait_for_map(P_pointers, l_pointers, needed, D, PARTS)
    own = r == place_in_group
    P_own, l_own = row(P, l, ROWS - 1, lane, TILE.channels)
    P_tile = choose(own, P_own, choose(needed, P_tile, constant(1.0, lane, COMPLEX)))
    l_tile = choose(own, l_own, choose(needed, l_tile, constant(0.0, lane, COMPLEX)))
    P_tile, l_tile = compose(P_tile, l_tile, lane, TILE)

    P_before, l_before = row(P_tile, l_tile, tl.maximum(place_in_group - 1, 0), lane, TILE.channels)

    states = word_pointers(words_ptr, origin + (group + 0 * lane) * pitch, STATE_WORDS, channel, D, PARTS)
    state = choose(group + 0 * lane == 0, initial, wait_for_state(states, inside & (group > 0), D, PARTS))
    next_group = word_pointers(words_ptr, origin + (group + ROWS + 0 * lane) * pitch, STATE_WORDS, channel, D, PARTS)
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
def own_runs(bounds_ptr, counts, TILE: tl.constexpr):
    """The runs of this program."""
    sequence, tile, origin, pitch, start, length, block = tile_of_program(
        bounds_ptr, counts.steps, counts.sequences, counts.blocks, TILE.time
    )
    batch = sequence if bounds_ptr is None else 0
    lane = tl.arange(0, TILE.channels << TILE.levels)
    channel = block * TILE.channels + lane % TILE.channels
    first = (tile << TILE.levels) * TILE.steps + lane // TILE.channels * TILE.steps
    return Runs(sequence, batch, tile, origin, pitch, start, length, block, lane, channel, first)


@triton.jit
def unused(bounds_ptr, runs, TILE: tl.constexpr):
    """Whether a packed sequence has no such tile; its first one it has, even if empty."""
    if bounds_ptr is None:
        return False
    else:
        return (runs.tile < 0) | ((runs.tile > 0) & (runs.tile * TILE.time >= runs.length))


@triton.jit
def offset_of(array, step, runs, REVERSE: tl.constexpr):
    """Where a step of the sequence lies in an array."""
    t = runs.start + (runs.length - 1 - step if REVERSE else step)
    offset = tl.cast(runs.batch, tl.int64) * array.batch + t.to(tl.int64) * array.step
    return offset + runs.channel.to(tl.int64) * array.channel


@triton.jit
def load_runs(
    array,
    runs,
    first,
    stop,
    D,
    other: tl.constexpr,
    REVERSE: tl.constexpr,
    COMPLEX: tl.constexpr,
    TILE: tl.constexpr,
):
    """Every lane's steps from `first` on; `other` from `stop` on, and before the sequence begins.

    All are asked for before any is used. The parts of the result are tuples, see `step_of`.
    """
    STEPS: tl.constexpr = TILE.steps
    offset = offset_of(array, first, runs, REVERSE)
    stride = -array.step if REVERSE else array.step
    limit = tl.where(runs.channel < D, stop, -1)
    re, im = (), ()
    for i in tl.static_range(STEPS):
        mask = first + i < limit
        if i == 0:
            mask = mask & (first >= 0)
        x = load(array.pointer, offset + tl.cast(i, tl.int64) * stride, mask, other, COMPLEX)
        re += (x.re,)
        if COMPLEX:
            im += (x.im,)
    if COMPLEX:
        return Complex(re, im)
    else:
        return Real(re)


@triton.jit
def step_of(steps, i: tl.constexpr):
    """The number of step i of `load_runs`."""
    if len(steps) == 2:
        return Complex(steps.re[i], steps.im[i])
    else:
        return Real(steps.re[i])


@triton.jit
def load_state(states, s, lane, channel, D, COMPLEX: tl.constexpr):
    """A row of states as fp32; zeros where there is none."""
    if states.pointer is None:
        return constant(0.0, lane, COMPLEX)
    else:
        offset = tl.cast(s, tl.int64) * states.sequence + channel.to(tl.int64) * states.channel
        return fp32(load(states.pointer, offset, channel < D, 0.0, COMPLEX))


@triton.jit
def state_before(P, l, initial, words_ptr, state_ptr, runs, D, COMPLEX: tl.constexpr, TILE: tl.constexpr):
    """The state before this tile: found before (`state_ptr`), or from the tiles before it (`words_ptr`), or initial."""
    if state_ptr is not None:
        slot = runs.origin + runs.tile * runs.pitch
        return load_state(States(state_ptr, D, 1), slot, runs.lane, runs.channel, D, COMPLEX)
    else:
        state = load_state(initial, runs.sequence, runs.lane, runs.channel, D, COMPLEX)
        if words_ptr is not None:
            state = tile_state(P, l, state, words_ptr, runs, D, COMPLEX, TILE)
        return state


@triton.jit
def is_last(runs, TILE: tl.constexpr):
    """Whether a tile is its sequence's last; its last row then ends with the final state."""
    return (runs.tile + 1) * TILE.time >= runs.length


@triton.jit
def fill_outside(
    array,
    bounds_ptr,
    runs,
    counts,
    mask,
    COMPLEX: tl.constexpr,
    TILE: tl.constexpr,
):
    """Zeros before the first packed sequence and after the last one."""
    if bounds_ptr is not None:
        bounds = bounds_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        if runs.tile == 0:
            T, sequences = counts.steps, counts.sequences
            zero = constant(0.0, runs.lane, COMPLEX)
            until = tl.where(runs.sequence == 0, tl.load(bounds), 0)
            for t in range(0, until, TILE.rows):
                rows = t + runs.lane // TILE.channels
                offset = rows.to(tl.int64) * array.step + runs.channel.to(tl.int64) * array.channel
                store(array.pointer, offset, zero, mask & (rows < until))
            since = tl.where(runs.sequence == sequences - 1, tl.load(bounds + sequences), T)
            for t in range(since, T, TILE.rows):
                rows = t + runs.lane // TILE.channels
                offset = rows.to(tl.int64) * array.step + runs.channel.to(tl.int64) * array.channel
                store(array.pointer, offset, zero, mask & (rows < T))


@triton.jit(do_not_specialize=["initial_state", "counts"])
def carry_states(
    P_ptr,
    l_ptr,
    initial_state,
    bounds_ptr,
    state_ptr,
    counts,
    D,
    COMPLEX: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The state before every tile, from the tiles' maps (slots, D); a program for a sequence and block of channels."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    block = tl.program_id(0) % counts.blocks
    s = tl.program_id(0) // counts.blocks
    lane = tl.arange(0, TILE.channels << TILE.levels)
    r = lane // TILE.channels
    channel = block * TILE.channels + lane % TILE.channels
    if bounds_ptr is None:
        origin = s
        pitch = counts.sequences
        length = counts.steps
    else:
        bounds = bounds_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        start = tl.load(bounds + s)
        origin = start // TILE.time + s
        pitch = 1
        length = tl.load(bounds + s + 1) - start
    tiles = tl.maximum(tl.cdiv(length, TILE.time), 1)
    state = load_state(initial_state, s, lane, channel, D, COMPLEX)
    for group in range(0, tiles, TILE.rows):
        there = (channel < D) & (group + r < tiles)
        offset = (origin + (group + r) * pitch).to(tl.int64) * D + channel
        P = load(P_ptr, offset, there, 1.0, COMPLEX)
        l = load(l_ptr, offset, there, 0.0, COMPLEX)
        P, l = compose(P, l, lane, TILE)
        P_before, l_before = before(P, l, lane, TILE.channels)
        store(state_ptr, offset, choose(r == 0, state, advance(P_before, state, l_before)), there)
        P, l = row(P, l, TILE.rows - 1, lane, TILE.channels)
        state = advance(P, state, l)
