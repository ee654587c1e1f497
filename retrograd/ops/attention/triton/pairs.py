"""What the kernels of attention share: sequences in tiles, scores of pairs, dropout. Symbols: ../README.md."""

import triton
import triton.language as tl

ROUNDS = tl.constexpr(7)


@triton.jit
def tiles_of(cu_ptr, T, sequences, BLOCK: tl.constexpr):
    """The number of tiles of a row."""
    if cu_ptr is None:
        return tl.cdiv(T, BLOCK)
    else:
        return T // BLOCK + sequences


@triton.jit
def owner_of(cu_ptr, tile, sequences, BLOCK: tl.constexpr):
    """The last sequence whose first tile is not behind this one; tiles of sequence i begin at start // BLOCK + i."""
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        behind = tl.load(cu_ptr + middle) // BLOCK + middle > tile
        high = tl.where(behind, middle, high)
        low = tl.where(behind, low, middle)
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
def tile_of_queries(cu_q_ptr, cu_k_ptr, sizes, BLOCK: tl.constexpr):
    """What a program that owns a tile of queries works on: batch, head and `sequence_of` its tile."""
    Tq, Tk, heads, _share, sequences = sizes
    tiles = tiles_of(cu_q_ptr, Tq, sequences, BLOCK)
    # The last tiles see most keys, so they come first.
    tile = tiles - 1 - tl.program_id(0) % tiles
    row = tl.program_id(0) // tiles
    batch, head = row // heads, row % heads
    number, first_q, queries, first_k, keys, at = sequence_of(cu_q_ptr, cu_k_ptr, tile, batch, Tq, Tk, sequences, BLOCK)
    return batch, head, number, first_q, queries, first_k, keys, at


@triton.jit
def keys_seen(at, queries, keys, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """The keys that a tile of queries may see, from a multiple of BLOCK_K on; none if it has no query."""
    low, high = 0, keys
    if LEFT is not None:
        low = tl.maximum(at + keys - queries - LEFT, 0) // BLOCK_K * BLOCK_K
    if RIGHT is not None:
        high = tl.minimum(tl.minimum(at + BLOCK_Q, queries) + keys - queries + RIGHT, keys)
    return low, tl.where(at < queries, high, 0)


@triton.jit
def load_steps(array, batch, first, step, count, head, column, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The tile (steps, columns) of a head; zeros for steps that are none."""
    start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
    offsets = (first + step).to(tl.int64)[:, None] * array.step + column[None, :] * array.column
    mask = ((step >= 0) & (step < count))[:, None]
    if COLUMNS != BLOCK:
        mask = mask & (column < COLUMNS)[None, :]
    return tl.load(start + offsets, mask=mask, other=0.0)


@triton.jit
def load_row(array, batch, first, step, count, head):
    """Numbers of steps of a head, fp32; zeros for steps that are none."""
    start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
    return tl.load(start + (first + step).to(tl.int64) * array.step, mask=(step >= 0) & (step < count), other=0.0)


@triton.jit
def store_row(array, values, batch, first, step, count, head):
    """Store numbers of steps of a head."""
    start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
    tl.store(start + (first + step).to(tl.int64) * array.step, values, mask=step < count)


@triton.jit
def store_steps(array, values, batch, first, step, count, head, column, COLUMNS: tl.constexpr):
    """Store the tile (steps, columns) of a head, if there is such an array."""
    if array.pointer is not None:
        start = array.pointer + tl.cast(batch, tl.int64) * array.batch + tl.cast(head, tl.int64) * array.head
        offsets = (first + step).to(tl.int64)[:, None] * array.step + column[None, :] * array.column
        mask = (step < count)[:, None] & (column < COLUMNS)[None, :]
        tl.store(start + offsets, values.to(array.pointer.dtype.element_ty), mask=mask)


@triton.jit
def tanh(x):
    """By the exponential of a number that is not positive."""
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -y, y)


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
def scores_of(
    products, bias, slopes, batch, number, head, i, j, first_q, first_k, counts, shift,
    FACTOR: tl.constexpr, SOFTCAP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
):  # fmt: skip
    """The scores of a tile of pairs, -inf where a key is not visible, and the bounded product, or 0 without a cap."""
    x = products * FACTOR
    bounded = 0.0
    if SOFTCAP is not None:
        bounded = tanh(x / SOFTCAP)
        x = bounded * SOFTCAP
    queries, keys = counts
    visible = (i < queries)[:, None] & (j < keys)[None, :]
    behind = j[None, :] - (i + shift)[:, None]
    if LEFT is not None:
        visible = visible & (behind >= -LEFT)
    if RIGHT is not None:
        visible = visible & (behind <= RIGHT)
    if bias.pointer is not None:
        start = bias.pointer + tl.cast(batch, tl.int64) * bias.batch + tl.cast(head, tl.int64) * bias.head
        rows = (first_q + i).to(tl.int64)[:, None] * bias.query
        x += tl.load(start + rows + (first_k + j).to(tl.int64)[None, :] * bias.key, mask=visible, other=0.0)
    if slopes.pointer is not None:
        slope = tl.load(slopes.pointer + tl.cast(number, tl.int64) * slopes.batch + head * slopes.head)
        x -= slope * tl.abs(behind).to(tl.float32)
    return tl.where(visible, x, float("-inf")), bounded
