"""Packed sequences on the portable path: which sequence each step belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .spec import known
from .xp import Namespace

MOST_BITS = 31  # of a number of steps or sequences


@dataclass(frozen=True)
class Steps:
    """The steps of a packed row.

    Attributes:
        owner: (T,), the last sequence that begins at or before each step; 0 for steps before the first sequence.
        inside: (T,), whether the step belongs to its owner.
        offset: (T,), the steps since the start of the owner.
    """

    owner: Any
    inside: Any
    offset: Any


def steps(xp: Namespace, bounds: Any, time: int) -> Steps:
    """The steps of a row of `time` steps, from (S + 1,) boundaries that do not decrease."""
    begin, end = bounds[:-1], bounds[1:]
    step = xp.arange(bounds, time)
    owner = last_not_above(xp, begin, step)
    owner = xp.where(owner < 0, 0, owner)
    # Of several sequences that begin at the same step, only the last is not empty, and it is the owner.
    return Steps(owner, (step >= begin[owner]) & (step < end[owner]), step - begin[owner])


@dataclass(frozen=True)
class Slots:
    """The slots of the sequences of a packed row, each of `size` steps counted from a sequence's start.

    Attributes:
        first: (S,), the first slot of each sequence.
        last: (S,), the last one that it may have.
        owner: (slots,), the sequence of each slot.
        step: (slots, size), steps since the start of the owner.
        taken: (slots, size), whether the owner has such a step.
        source: (slots, size), the step's place in the row; 0 where not taken.
        inside: (T,), whether a step of the row belongs to a sequence.
        place: (T,), its place in the slots, flat; 0 where it belongs to none.
    """

    first: Any
    last: Any
    owner: Any
    step: Any
    taken: Any
    source: Any
    inside: Any
    place: Any


def slots(xp: Namespace, cu_seqlens: Any, time: int, size: int, count: int) -> Slots:
    """The slots of a row of `time` steps, `count` in all; see `spec.slot_count`."""
    bounds = xp.clip(cu_seqlens, 0, time)
    begin, end = bounds[:-1], bounds[1:]
    number = xp.arange(cu_seqlens, begin.shape[0])
    first = begin // size + number
    slot = xp.arange(cu_seqlens, count)
    owner = last_not_above(xp, first, slot)
    owner = xp.where(owner < 0, 0, owner)
    step = (slot - first[owner])[:, None] * size + xp.arange(cu_seqlens, size)[None]
    taken = (step >= 0) & (step < (end - begin)[owner][:, None])
    source = xp.where(taken, begin[owner][:, None] + step, 0)
    of = steps(xp, bounds, time)
    place = xp.where(of.inside, first[of.owner] * size + of.offset, 0)
    return Slots(first, end // size + number, owner, step, taken, source, of.inside, place)


@dataclass(frozen=True)
class Runs:
    """The runs of equal ids in the rows of a batch.

    Attributes:
        number: (B, T), from 1 on through all rows; 0 at steps with a negative id, which belong to no sequence.
        start: (B, T), the run's first step, counted from the start of its row.
    """

    number: Any
    start: Any


def runs(xp: Namespace, ids: Any) -> Runs:
    """The runs of (B, T) ids."""
    batch, time = ids.shape
    step = xp.arange(ids, time)
    before = xp.concat([ids[:, :1], ids[:, :-1]], 1)
    begins = xp.astype((ids != before) | (step == 0)[None], "int32")
    number = xp.cumsum(xp.reshape(begins, (batch * time,)), 0, False)
    first = xp.reshape(last_not_above(xp, number, number - 1) + 1, (batch, time))
    start = first - time * xp.arange(ids, batch)[:, None]
    return Runs(xp.where(ids < 0, 0, xp.reshape(number, (batch, time))), start)


def last_not_above(xp: Namespace, bounds: Any, values: Any) -> Any:
    """For each value, the index of the last of the sorted bounds that is not above it; -1 if all are."""
    low = values * 0 - 1
    high = low + 1 + bounds.shape[0]
    count = bounds.shape[0]
    for _ in range(count.bit_length() if known(count) else MOST_BITS):
        middle = (low + high) // 2
        inner = xp.where(middle < 0, middle * 0, middle)
        above = (bounds[inner] > values) & (middle >= 0)
        stop = high - low <= 1
        low, high = xp.where(above | stop, low, middle), xp.where(above & ~stop, middle, high)
    return low
