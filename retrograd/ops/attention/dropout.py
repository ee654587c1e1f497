"""Dropout's random numbers, by a counter: the same in PyTorch, in JAX and in the kernels.

Philox4x32 with seven rounds (Salmon et al., 2011): counter (call, query, b H + h, start of the sequence), key
(seed, 0). A call's four words are eight numbers of 16 bits. Of 32 keys, call c of four has keys 2 c and 2 c + 1 and
those 8, 16 and 24 after them, as a thread of a tensor core's result has them; word n has those that lie 8 n after,
the lower half first.
"""

from __future__ import annotations

from typing import Any

from retrograd.core.xp import Namespace, aligned

from .op import FORMS, Spec
from .tiles import Tiles

ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
GROUP, CALLS = 32, 4  # keys of a group, and its calls


def kept(xp: Namespace, spec: Spec, seed: Any, queries: Tiles, key: Any) -> Any:
    """Whether each pair of a query and a key of a tile is kept: (batch, G, R, query tiles, TILE, TILE).

    `key` has the steps of the tile's keys, (TILE,), the first a multiple of GROUP.
    """
    groups = key.shape[0] // GROUP
    first = xp.reshape(key, (groups, GROUP))[:, 0] // GROUP * CALLS
    call = first[:, None] + xp.arange(key, CALLS)[None]  # (groups, CALLS)
    rows = xp.arange(key, spec.batch * spec.heads)
    of_heads = (spec.batch, spec.groups, spec.heads // max(spec.groups, 1))
    shape = (*of_heads, *queries.step.shape, groups, CALLS)
    counter = (
        call,
        xp.reshape(queries.step, (*shape[3:5], 1, 1)),
        xp.reshape(rows, (*of_heads, 1, 1, 1, 1)),
        xp.reshape(queries.start, (shape[3], 1, 1, 1)),
    )
    words = philox(xp, [xp.broadcast_to(xp.word(part), shape) for part in counter], xp.word(seed))
    halves = [half for word in words for half in (word & (FORMS - 1), word >> 16)]
    numbers = xp.stack(halves, -2)  # (..., groups, 8, CALLS): word and half, then call
    numbers = xp.reshape(numbers, (*shape[:6], 4, 2, CALLS))
    numbers = xp.reshape(xp.moveaxis(numbers, -1, -2), (*shape[:5], key.shape[0]))  # word, call, half
    return numbers >= spec.threshold


def kept_in_runs(xp: Namespace, spec: Spec, seed: Any, query: Any, key: Any, start: Any) -> Any:
    """As `kept`, for rows that hold several sequences at any step: every pair makes its own call.

    `query` (query tiles, TILE) and `key` (TILE,) are steps of a row, and `start` (batch, 1, 1, query tiles, TILE, 1)
    is where the query's sequence begins.
    """
    of_heads = (spec.batch, spec.groups, spec.heads // max(spec.groups, 1))
    row = xp.reshape(xp.arange(key, spec.batch * spec.heads), (*of_heads, 1, 1, 1))
    step = aligned(key, start) - start
    place = xp.where(step < 0, 0, step)  # of a key before the sequence, which nothing sees
    shape = (*of_heads, *query.shape, key.shape[0])
    counter = (place // GROUP * CALLS + place % 8 // 2, aligned(query[:, :, None], start) - start, row, start)
    words = philox(xp, [xp.broadcast_to(xp.word(part), shape) for part in counter], xp.word(seed))
    word = words[0]
    for number in range(1, 4):
        word = xp.where(place % GROUP // 8 == number, words[number], word)
    return xp.where(place % 2 == 0, word & (FORMS - 1), word >> 16) >= spec.threshold


def philox(xp: Namespace, counter: list[Any], seed: Any) -> list[Any]:
    """The four words of each counter."""
    a, b, c, d = counter
    keys = [seed, xp.word(seed * 0)]
    for _ in range(ROUNDS):
        (high, low), (higher, lower) = xp.mul_wide(a, MULTIPLIERS[0]), xp.mul_wide(c, MULTIPLIERS[1])
        a, b, c, d = higher ^ b ^ keys[0], lower, high ^ d ^ keys[1], low
        keys = [xp.add_word(key, step) for key, step in zip(keys, WEYL, strict=True)]
    return [a, b, c, d]
