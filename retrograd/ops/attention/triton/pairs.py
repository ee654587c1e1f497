"""What the kernels of attention share: sequences in tiles, scores of pairs, dropout. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, LOG2E_REST, tanh

from ..arrays import STEPS_OF_PACKED
from ..device import LN2, load_steps, store_row, store_steps, unsigned
from ..op import FORMS
from .tuples import Sequence, Work

ROUNDS = tl.constexpr(7)
BOUNDS = tl.constexpr(512)  # bounds of sequences that a program compares at once
LIMIT = tl.constexpr(STEPS_OF_PACKED)


@triton.jit
def tiles_of(cu_ptr, T, sequences, BLOCK: tl.constexpr):
    """The number of tiles of a row."""
    if cu_ptr is None:
        return tl.cdiv(T, BLOCK)
    else:
        return T // BLOCK + sequences


@triton.jit
def owner_of(cu_ptr, tile, sequences, BLOCK: tl.constexpr, SEGMENTED: tl.constexpr = False):
    """The last sequence whose first tile is this one or before it; tiles of sequence i begin at start // BLOCK + i."""
    low = 0
    high = sequences
    while high - low > 1:
        part = tl.cdiv(high - low, BOUNDS)
        number = low + (1 + tl.arange(0, BOUNDS)) * part
        start = tl.load(cu_ptr + number, mask=number < high, other=0)
        if SEGMENTED:
            start = unsigned(start)
        low += tl.sum(((number < high) & (start // BLOCK + number <= tile)).to(tl.int32), axis=0) * part
        high = tl.minimum(high, low + part)
    return low


@triton.jit
def sequence_of(cu_ptr, other_ptr, tile, batch, T, other_T, sequences, BLOCK: tl.constexpr):
    """Of a tile of queries, or of keys: the sequence, or the row where none are packed; its first step and their
    number; those of its keys, or queries; the tile's first step in it. No step if the tile belongs to no sequence.
    """
    if cu_ptr is None:
        return batch, 0, T, 0, other_T, tile * BLOCK
    else:
        number = owner_of(cu_ptr, tile, sequences, BLOCK)
        start = tl.minimum(tl.maximum(tl.load(cu_ptr + number), 0), T)
        end = tl.minimum(tl.maximum(tl.load(cu_ptr + number + 1), start), T)
        first = tl.minimum(tl.maximum(tl.load(other_ptr + number), 0), other_T)
        last = tl.minimum(tl.maximum(tl.load(other_ptr + number + 1), first), other_T)
        at = (tile - start // BLOCK - number) * BLOCK
        return number, start, tl.where(at >= 0, end - start, 0), first, last - first, at


@triton.jit
def assigned(tiles, heads, SCORES: tl.constexpr):
    """The batch, head and tile that a program is assigned; those that read the same part of a bias run side by side."""
    if SCORES.bias_described is not None:
        rows = tl.num_programs(0) // (tiles * heads)
        own = tl.program_id(0) // rows
        return tl.program_id(0) % rows, own // tiles, own % tiles
    else:
        row = tl.program_id(0) // tiles
        return row // heads, row % heads, tl.program_id(0) % tiles


@triton.jit
def work_on_queries(cu_q_ptr, cu_k_ptr, batch, head, tile, sizes, BLOCK: tl.constexpr):
    """The work on a tile of queries of a row."""
    number, first_q, queries, first_k, keys, at = sequence_of(
        cu_q_ptr, cu_k_ptr, tile, batch, sizes.queries, sizes.keys, sizes.sequences, BLOCK
    )
    return Work(Sequence(batch, number, first_q, queries, first_k, keys, 0), head, tile, at)


@triton.jit
def work_on_keys(cu_q_ptr, cu_k_ptr, batch, group, tile, sizes, BLOCK: tl.constexpr):
    """The work on a tile of keys of a row."""
    number, first_k, keys, first_q, queries, at = sequence_of(
        cu_k_ptr, cu_q_ptr, tile, batch, sizes.keys, sizes.queries, sizes.sequences, BLOCK
    )
    return Work(Sequence(batch, number, first_q, queries, first_k, keys, 0), group, tile, at)


@triton.jit
def tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, SCORES: tl.constexpr, TILES: tl.constexpr):
    """The tile of queries that a program owns."""
    tiles = tiles_of(cu_q_ptr, sizes.queries, sizes.sequences, TILES.queries)
    batch, head, tile = assigned(tiles, sizes.heads, SCORES)
    tile = tiles - 1 - tile  # the last tiles see most keys, so they come first
    return work_on_queries(cu_q_ptr, cu_k_ptr, batch, head, tile, sizes, TILES.queries)


@triton.jit
def tile_of_keys(cu_q_ptr, cu_k_ptr, sizes, SCORES: tl.constexpr, TILES: tl.constexpr):
    """The tile of keys that a program owns."""
    tiles = tiles_of(cu_k_ptr, sizes.keys, sizes.sequences, TILES.keys)
    batch, group, tile = assigned(tiles, sizes.heads // sizes.share, SCORES)
    return work_on_keys(cu_q_ptr, cu_k_ptr, batch, group, tile, sizes, TILES.keys)


@triton.jit
def seen(at, own, others, BEFORE: tl.constexpr, AFTER: tl.constexpr, OWN: tl.constexpr, OTHER: tl.constexpr):
    """Of a tile of OWN steps from `at` on, of `own` steps: which of the `others` it meets, in tiles of OTHER.

    A step i meets j if i + shift - BEFORE <= j <= i + shift + AFTER, with shift = others - own; None is no limit.
    Returned are low, first, last, high: those from low on, a multiple of OTHER, up to high. From first to last are
    whole tiles that every step meets.
    """
    low, high = 0, others
    first, last = 0, others // OTHER * OTHER
    shift = others - own
    end = tl.minimum(at + OWN, own)
    if BEFORE is not None:
        low = tl.maximum(at + shift - BEFORE, 0) // OTHER * OTHER
        first = tl.cdiv(tl.maximum(end - 1 + shift - BEFORE, 0), OTHER) * OTHER
    if AFTER is not None:
        high = tl.minimum(tl.maximum(end + shift + AFTER, 0), others)
        last = tl.minimum(last, tl.maximum(at + shift + AFTER + 1, 0) // OTHER * OTHER)
    high = tl.where(at < own, high, 0)
    first = tl.minimum(first, high)
    return low, first, tl.maximum(tl.minimum(last, high), first), high


@triton.jit
def tiles_of_keys(sequence, at, SCORES: tl.constexpr, TILES: tl.constexpr):
    """The tiles of keys that the tile of queries from `at` on sees; see `seen`."""
    return seen(at, sequence.queries, sequence.keys, SCORES.before, SCORES.after, TILES.queries, TILES.keys)


@triton.jit
def tiles_of_queries(sequence, at, SCORES: tl.constexpr, TILES: tl.constexpr):
    """The tiles of queries that see the tile of keys from `at` on: the window's sides are exchanged; see `seen`."""
    return seen(at, sequence.keys, sequence.queries, SCORES.after, SCORES.before, TILES.keys, TILES.queries)


@triton.jit
def load_tile(
    array,
    batch,
    first,
    at,
    count,
    head,
    origin,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    DESCRIBED: tl.constexpr,
):
    """The tile of STEPS steps of a head from `at` on, through a tensor descriptor or by strides.

    Zeros for columns and steps that are none. origin: see `Sequence`.
    """
    if not DESCRIBED:
        step = at + tl.arange(0, STEPS)
        return load_steps(array, batch, first, step, count, head, tl.arange(0, BLOCK), COLUMNS, BLOCK)
    elif len(array.shape) == 5:
        # The end of the sequence is at the limit of the third axis; see `launches.Launches.described`.
        tile = array.load([LIMIT, origin + first + count, LIMIT - count + at, head, 0])
        return tile.reshape(STEPS, BLOCK)
    else:
        return array.load([batch, first + at, head, 0]).reshape(STEPS, BLOCK)


@triton.jit
def load_queries(array, sequence, at, head, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """The tile of queries from `at` on."""
    batch, first, count, origin = sequence.batch, sequence.first_q, sequence.queries, sequence.origin
    return load_tile(array, batch, first, at, count, head, origin, COLUMNS, BLOCK, TILES.queries, TILES.described)


@triton.jit
def load_keys(array, sequence, at, head, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr):
    """The tile of keys from `at` on."""
    batch, first, count, origin = sequence.batch, sequence.first_k, sequence.keys, sequence.origin
    return load_tile(array, batch, first, at, count, head, origin, COLUMNS, BLOCK, TILES.keys, TILES.described)


@triton.jit
def clear_gaps(
    array, cu_ptr, T, sequences, tile, head, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr
):
    """Store zeros in those of the steps from tile * STEPS on that are before the first packed sequence, or after the
    last. Rows have at least as many tiles as are needed for all of their steps.
    """
    if cu_ptr is not None:
        at = tile * STEPS
        low, high = tl.load(cu_ptr), tl.load(cu_ptr + sequences)
        if (at < low) | (at + STEPS > high):
            step = at + tl.arange(0, STEPS)
            step = tl.where((step < low) | (step >= high), step, T)
            if BLOCK == 1:
                store_row(array, tl.zeros([STEPS], tl.float32), 0, 0, step, T, head)
            else:
                zeros = tl.zeros([STEPS, BLOCK], tl.float32)
                store_steps(array, zeros, 0, 0, step, T, head, tl.arange(0, BLOCK), COLUMNS)


@triton.constexpr_function
def upscale(DROPPED):
    """The factor of what dropout keeps."""
    return 1.0 / (1.0 - DROPPED / FORMS)


@triton.jit
def dropped(x, keep, DROPPED: tl.constexpr):
    """Probabilities, or gradients at them, after dropout."""
    return x if DROPPED == 0 else tl.where(keep, x * upscale(DROPPED), 0.0)


@triton.jit
def fast_tanh(x):
    """tanh(x) in two special instructions, with an absolute error below 2^-20."""
    root = tl.rsqrt(1.0 + tl.exp2(x * (2.0 * LOG2E)))
    return 1.0 - 2.0 * root * root


@triton.jit
def round_of_philox(a, b, c, d, key, other):
    """One round."""
    high, low = tl.umulhi(a, tl.full([], 0xD2511F53, tl.uint32)), a * tl.full([], 0xD2511F53, tl.uint32)
    higher, lower = tl.umulhi(c, tl.full([], 0xCD9E8D57, tl.uint32)), c * tl.full([], 0xCD9E8D57, tl.uint32)
    return higher ^ b ^ key, lower, high ^ d ^ other, low


@triton.jit
def kept(seed_ptr, i, row, start, j, THRESHOLD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Whether dropout keeps each pair of queries i and the KEYS keys from j on, a multiple of 32."""
    GROUPS: tl.constexpr = KEYS // 32
    call = (j // 32 * 4 + tl.arange(0, GROUPS * 4)).to(tl.uint32)
    zero = tl.zeros([QUERIES, GROUPS * 4], tl.uint32)
    a, b = zero + call[None, :], zero + i.to(tl.uint32)[:, None]
    c, d = zero + tl.cast(row, tl.uint32), zero + tl.cast(start, tl.uint32)
    key = tl.load(seed_ptr).to(tl.uint32)
    other = tl.full([], 0, tl.uint32)
    for _ in tl.static_range(ROUNDS):
        a, b, c, d = round_of_philox(a, b, c, d, key, other)
        key += tl.full([], 0x9E3779B9, tl.uint32)
        other += tl.full([], 0xBB67AE85, tl.uint32)
    first = tl.join(tl.join(a & 0xFFFF, a >> 16), tl.join(b & 0xFFFF, b >> 16))
    last = tl.join(tl.join(c & 0xFFFF, c >> 16), tl.join(d & 0xFFFF, d >> 16))
    # (queries, groups, calls, half, word's low bit, word's high bit) -> keys in their order
    numbers = tl.reshape(tl.join(first, last), [QUERIES, GROUPS, 4, 2, 2, 2])
    numbers = tl.reshape(tl.permute(numbers, [0, 1, 5, 4, 2, 3]), [QUERIES, KEYS])
    return numbers >= THRESHOLD


@triton.jit
def power(x, EXACT: tl.constexpr):
    """2^x; with EXACT e^x, to the last bit or two of float32."""
    if EXACT:
        x = tl.where(x < -1e4, -1e4, x)
        whole = x * LOG2E
        rest = tl.fma(x, LOG2E, -whole) + x * LOG2E_REST
        power = tl.exp2(whole)
        return tl.fma(power, rest * LN2, power)
    else:
        return tl.exp2(x)


@triton.jit
def probabilities(x, base, SCORES: tl.constexpr):
    """Of scores of pairs, from what the forward pass has left of each query: `base` in `backward.deltas`."""
    return power(x * SCORES.exponent - base, SCORES.unit == 1.0)


@triton.jit
def load_bias(bias, sequence, head, i, j, at_q, at_k, SCORES: tl.constexpr, TILES: tl.constexpr):
    """The bias of the tile of pairs that begins at query at_q and key at_k, transposed where i and j are."""
    if SCORES.bias_described:
        row, own = tl.minimum(sequence.batch, bias.shape[0] - 1), tl.minimum(head, bias.shape[1] - 1)
        part = bias.load([row, own, sequence.first_q + at_q, sequence.first_k + at_k])
        part = part.reshape(TILES.queries, TILES.keys)
        return part if i.shape[1] == 1 else tl.trans(part)
    else:
        start = bias.pointer + tl.cast(sequence.batch, tl.int64) * bias.batch + tl.cast(head, tl.int64) * bias.head
        of_queries = tl.cast(sequence.first_q + i, tl.int64) * bias.query
        at = of_queries + tl.cast(sequence.first_k + j, tl.int64) * bias.key
        return tl.load(start + at, mask=(i < sequence.queries) & (j < sequence.keys), other=0.0)


@triton.jit
def scores_of(
    products,
    inputs,
    sequence,
    head,
    i,
    j,
    at_q,
    at_k,
    border,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
):
    """The scores of a tile of pairs, -inf where a key is not visible; their bounded products, 0 without a cap.

    i, j: (queries, 1) and (1, keys), or transposed; at_q, at_k: the first of each. border: whether there are pairs that
    are not visible.
    """
    UNIT: tl.constexpr = SCORES.unit
    shift = sequence.keys - sequence.queries
    x, bounded = products, 0.0
    if SCORES.factor is not None:
        x = products * SCORES.factor
        if SCORES.softcap is not None:
            bounded = tanh(x) if UNIT == 1.0 else fast_tanh(x)
            x = bounded * (SCORES.softcap * UNIT)
        if SCORES.bias_described is not None:
            added = load_bias(inputs.bias, sequence, head, i, j, at_q, at_k, SCORES, TILES)
            x = tl.fma(added.to(tl.float32), UNIT, x)
        slopes = inputs.slopes
        if slopes.pointer is not None:
            own = slopes.pointer + tl.cast(sequence.number, tl.int64) * slopes.batch + head * slopes.head
            slope = tl.load(own) * UNIT
            x = tl.fma(-slope, tl.abs(j - i - shift).to(tl.float32), x)
    if border:
        visible = (i < sequence.queries) & (j < sequence.keys)
        if SCORES.before is not None:
            visible = visible & (j >= i + (shift - SCORES.before))
        if SCORES.after is not None:
            visible = visible & (j <= i + (shift + SCORES.after))
        x = tl.where(visible, x, float("-inf"))
    return x, bounded
