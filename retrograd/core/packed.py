"""Packed sequences on the portable path: which sequence each step belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .xp import Namespace


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


def last_not_above(xp: Namespace, bounds: Any, values: Any) -> Any:
    """For each value, the index of the last of the sorted bounds that is not above it; -1 if all are."""
    low = values * 0 - 1
    high = low + 1 + bounds.shape[0]
    for _ in range(bounds.shape[0].bit_length()):
        middle = (low + high) // 2
        inner = xp.where(middle < 0, middle * 0, middle)
        above = (bounds[inner] > values) & (middle >= 0)
        stop = high - low <= 1
        low, high = xp.where(above | stop, low, middle), xp.where(above & ~stop, middle, high)
    return low
