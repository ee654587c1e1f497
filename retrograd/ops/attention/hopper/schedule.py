"""Which tile comes next, and what it sees of the other side; all in scalars. Symbols: ../README.md."""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import block_barrier
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..arrays import STEPS_OF_PACKED
from ..device import unsigned
from .tickets import draw

LIMIT = tl.constexpr(STEPS_OF_PACKED)
ENTRY = tl.constexpr(8)  # numbers of a tile in a list of tiles
ALIGNED = tl.constexpr(4)  # float32 elements: TMA copies rows of blocks from multiples of 16 bytes on


@triton.jit
def sequences_of(starts, bounds_ptr, sequences, T, BLOCK: tl.constexpr):
    """For each tile, or step where BLOCK is None, the last sequence that starts at or before it; tiles of sequence i
    start at start // BLOCK + i. As `owner_of`, for many at once.
    """
    low = starts * 0
    size = sequences
    while size > 1:
        half = size // 2
        first = bound_of(bounds_ptr, low + half, T)
        if BLOCK is not None:
            first = first // BLOCK + low + half
        low = tl.where(first <= starts, low + half, low)
        size -= half
    return low


@triton.jit
def bound_of(bounds_ptr, i, T):
    """Where sequence i begins; in a list of runs, too."""
    return tl.minimum(unsigned(tl.load(bounds_ptr + i)), T)


@triton.jit(do_not_specialize=["sizes"])
def list_tiles(
    cu_ptr, other_ptr, runs_ptr, tile_list_ptr, sizes, BLOCK: tl.constexpr, TILES: tl.constexpr, OVERLAP: tl.constexpr
):
    """tile_list (tiles, 8), int32, of tiles of packed queries, or keys: first step and number of its sequence's
    queries, and of its keys, or the other way round; the tile's first step; whether these steps are of no sequence; the
    sequence's number. No steps if there is no such tile.

    The steps before the first sequence, and those after the last, are listed as sequences without the others. Where
    there are ids, runs_ptr has the runs of all rows, see `runs`, of which those of negative ids are without others.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    T, other_T, sequences, tiles = sizes.steps, sizes.others, sizes.sequences, sizes.tiles
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    if runs_ptr is None:
        low, high = bound_of(cu_ptr, 0, T), bound_of(cu_ptr, sequences, T)
        number = sequences_of(tl.maximum(tile - 1, 0), cu_ptr, sequences, T, BLOCK)
        first, end = bound_of(cu_ptr, number, T), bound_of(cu_ptr, number + 1, T)
        other_first, other_end = bound_of(other_ptr, number, other_T), bound_of(other_ptr, number + 1, other_T)
        at = (tl.maximum(tile - 1, 0) - first // BLOCK - number) * BLOCK
        before, after = tile <= low // BLOCK, tile - (high // BLOCK + sequences + 1)
        outside = before | (after >= 0)
        count = tl.where(before, low, tl.where(after >= 0, T - high, end - first))
        first = tl.where(before, 0, tl.where(after >= 0, high, first))
        at = tl.where(outside, tl.where(before, tile, after) * BLOCK, at)
    else:
        sequences = tl.load(runs_ptr)
        number = sequences_of(tile, runs_ptr + 1, sequences, T, BLOCK)
        outside = tl.load(runs_ptr + 1 + number) < 0
        first = bound_of(runs_ptr + 1, number, T)
        end = bound_of(runs_ptr + 1, number + 1, T)
        other_first, other_end, count = first, end, end - first
        at = (tile - first // BLOCK - number) * BLOCK
    exists = (at >= 0) & (at < count)
    entry, listed = tile_list_ptr + tile * ENTRY, tile < tiles
    tl.store(entry, first, mask=listed)
    tl.store(entry + 1, tl.where(exists, count, 0), mask=listed)
    tl.store(entry + 2, other_first, mask=listed)
    tl.store(entry + 3, tl.where(exists & ~outside, other_end - other_first, 0), mask=listed)
    tl.store(entry + 4, tl.where(exists, at, 0), mask=listed)
    tl.store(entry + 5, outside.to(tl.int32), mask=listed)
    tl.store(entry + 6, number, mask=listed)


class ListedTile(NamedTuple):
    """What `list_tiles` lists of a tile, in this order."""

    first: Any
    count: Any
    other_first: Any
    others: Any
    at: Any
    outside: Any
    number: Any


@gluon.jit
def listed_tile(tile_list_ptr, tile):
    """A tile of the list."""
    entry = tile_list_ptr + tile * ENTRY
    first, count, other_first, others = gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), gl.load(entry + 3)
    at, outside, number = gl.load(entry + 4), gl.load(entry + 5), gl.load(entry + 6)
    return ListedTile(first, count, other_first, others, at, outside, number)


@gluon.jit
def tiles_of_head(runs_ptr, tiles, BLOCK: gl.constexpr):
    """The number of tiles of a head, which is known on the device only where ids tell sequences apart."""
    if runs_ptr is None:
        return tiles
    else:
        count = gl.load(runs_ptr)
        return gl.load(runs_ptr + 1 + count) // BLOCK + count


@gluon.jit
def of_section(t, tiles, rows, section):
    """Row and tile of number t: a section of rows after another, and in it tile after tile, each of all its rows."""
    first = t // (section * tiles) * section
    within, count = t - first * tiles, gl.minimum(rows - first, section)
    return first + within % count, within // count


@gluon.jit
def tile_of_queries(t, tiles, tile_list_ptr, sizes, TILE: gl.constexpr):
    """Of tile number t, of `tiles` of a head: batch, head; first step and number of its sequence's queries, and keys;
    its own first query; whether its steps are of no sequence. With ids, batch is 0 and steps are those of all rows.

    The heads of all rows are in sections, whose keys and values fit in the L2. In a section those tiles come first that
    see most keys.
    """
    row, order = of_section(t, tiles, sizes.rows, sizes.section)
    tile = tiles - 1 - order
    if tile_list_ptr is None:
        return row // sizes.heads, row % sizes.heads, 0, sizes.queries, 0, sizes.keys, tile * TILE, 0
    else:
        own = listed_tile(tile_list_ptr, tile)
        return 0, row, own.first, own.count, own.other_first, own.others, own.at, own.outside


@gluon.jit
def rows_side_by_side(batch, head, sizes):
    """The batch and head of a row where all batches of a head come one after the other: they share a bias."""
    row, batches = batch * sizes.heads + head, sizes.rows // sizes.heads
    return row % batches, row // batches


@gluon.jit
def at_step(array, batch, first, at, count, head, column=0):
    """The coordinates of a tile in a tensor descriptor, see `passes.Launches.described`."""
    if len(array.block_shape) == 5:
        return [LIMIT, first + count, LIMIT - count + at, head, column]
    else:
        return [batch, first + at, head, column]


@gluon.jit
def blocks_seen(at, queries, keys, WINDOW: gl.constexpr, TILE: gl.constexpr, KEYS: gl.constexpr):
    """The first block of keys that a tile of queries sees, and the end of its blocks; at least one."""
    shift = keys - queries
    low, high = 0, keys
    if WINDOW.before is not None:
        low = gl.maximum(at + shift - WINDOW.before, 0) // KEYS
    if WINDOW.after is not None:
        high = gl.minimum(gl.maximum(gl.minimum(at + TILE, queries) + shift + WINDOW.after, 0), keys)
    high = gl.maximum(gl.cdiv(high, KEYS), 1)
    return gl.minimum(low, high - 1), high


@gluon.jit
def unmasked(own, queries, keys, low, high, WINDOW: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr):
    """The range of blocks that need no mask, among those from low to before the last: all queries from `own` on see all
    keys.
    """
    shift = keys - queries
    bottom, last = low, keys
    if WINDOW.after is not None:
        last = gl.minimum(last, gl.maximum(own + shift + WINDOW.after + 1, 0))
    top = gl.minimum(gl.maximum(last // KEYS, low), high - 1)
    if WINDOW.before is not None:
        end = gl.minimum(own + QUERIES, queries)
        bottom = gl.cdiv(gl.maximum(end - 1 + shift - WINDOW.before, 0), KEYS)
        bottom = gl.minimum(gl.maximum(bottom, low), top)
    return bottom, top


@gluon.jit
def tile_of_keys(ticket, tiles, tile_list_ptr, sizes, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr):
    """Of a ticket, of `tiles` of a group: batch, group; first step and number of its sequence's queries, and keys; its
    tile's first key; the number, in all rows, of the tile of queries with which the sequence begins in head 0.

    The groups of all rows are in sections, whose queries fit in the L2. In a section tile comes after tile, each in all
    groups, so that the program before one that waits for it has begun some time before.
    """
    row, tile = of_section(ticket, tiles, sizes.rows, sizes.section)
    groups = sizes.heads // SHARE
    if tile_list_ptr is None:
        batch = row // groups
        group, at = row % groups, tile * KEYS
        return batch, group, 0, sizes.queries, 0, sizes.keys, at, batch * sizes.heads * sizes.tiles_q
    else:
        own = listed_tile(tile_list_ptr, tile)
        rows_at = own.other_first // QUERIES + own.number
        return 0, row, own.other_first, own.others, own.first, own.count, own.at, rows_at


@gluon.jit
def queries_seen(at, queries, keys, WINDOW: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr):
    """The first tile of queries that sees a tile of keys, and how many do."""
    shift = keys - queries
    low, high = 0, queries
    if WINDOW.after is not None:
        low = gl.maximum(at - shift - WINDOW.after, 0) // QUERIES
    if WINDOW.before is not None:
        high = gl.minimum(gl.maximum(gl.minimum(at + KEYS, keys) - shift + WINDOW.before, 0), queries)
    return low, gl.maximum(gl.cdiv(high, QUERIES) - low, 0)


@gluon.jit
def queries_unmasked(
    at, low, steps, queries, keys, WINDOW: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, LISTED: gl.constexpr
):
    """The range of tiles of queries, among `steps` from `low` on, whose pairs with a tile of keys are all visible.

    With LISTED, what comes after the queries of a sequence is not theirs.
    """
    shift = keys - queries
    bottom, top = low, low + steps
    if WINDOW.after is not None:
        bottom = gl.maximum(bottom, gl.cdiv(gl.maximum(at + KEYS - 1 - shift - WINDOW.after, 0), QUERIES))
    if WINDOW.before is not None:
        top = gl.minimum(top, gl.maximum(at - shift + WINDOW.before + 1, 0) // QUERIES)
    if LISTED:
        top = gl.minimum(top, queries // QUERIES)
    top = gl.maximum(top, low)
    bottom = gl.minimum(bottom, top)
    if at + KEYS > keys:
        bottom = top
    return bottom, top


@triton.jit
def turn_of(at, start, queries, keys, WINDOW: tl.constexpr, KEYS: tl.constexpr):
    """How many tiles of keys before the one from `at` on see the tile of queries from `start` on."""
    first = 0
    if WINDOW.before is not None:
        first = tl.maximum(start + keys - queries - WINDOW.before, 0) // KEYS
    return at // KEYS - first


@triton.jit
def turns_of(start, queries, keys, WINDOW: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """How many tiles of keys see the tile of queries from `start` on."""
    tiles = tl.cdiv(keys, KEYS)
    if WINDOW.after is not None:
        last = start + QUERIES - 1 + keys - queries + WINDOW.after
        tiles = tl.minimum(tiles, tl.maximum(last + KEYS, 0) // KEYS)
    return tl.maximum(turn_of(tiles * KEYS, start, queries, keys, WINDOW, KEYS), 0)


@gluon.jit
def first_tile(counter_ptr, drawn):
    """The number of this program's first tile."""
    if drawn:
        t = draw(counter_ptr)
        block_barrier()  # the warps read the number where what they pass to others may come next
    else:
        t = gl.program_id(0)
    return t


@gluon.jit
def tile_after(t, counter_ptr, drawn):
    """The number of the tile that this program takes after tile t."""
    if drawn:
        t = draw(counter_ptr)
    else:
        t = there_and_back(t, gl.num_programs(0))
    return t


@gluon.jit
def there_and_back(t, programs):
    """The tile after t of the same program, where each program takes one of every round of tiles.

    Who has the first of a round has the last of the next: where tiles get shorter, what programs do is as long.
    """
    return 2 * programs * (t // programs + 1) - 1 - t
