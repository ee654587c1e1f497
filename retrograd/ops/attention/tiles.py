"""Queries and keys in tiles, counted from the start of their sequence, for the portable path."""

from __future__ import annotations

from typing import Any

from retrograd.core.packed import slots
from retrograd.core.spec import slot_count_of
from retrograd.core.xp import Namespace

TILE = 64


class Tiles:
    """The tiles of one axis of time: of every row of a batch alike, or of packed sequences.

    Attributes:
        count: the number of tiles.
        owner: (count,), the sequence of each tile; 0 where no sequences are packed.
        start: (count,), where that sequence starts.
        lengths: of each sequence, or of all rows.
        step: (count, TILE), steps since that start.
        taken: (count, TILE), whether the sequence has such a step.
    """

    def __init__(self, xp: Namespace, like: Any, time: int, cu_seqlens: Any = None) -> None:
        self.xp = xp
        self.time = time
        if cu_seqlens is None:
            self.count = 1 if time == 0 else slot_count_of(time, TILE, None)
            self.owner = xp.arange(like, self.count) * 0
            self.start = self.owner
            self.lengths = self.owner[:1] + time
            self.step = xp.reshape(xp.arange(like, self.count * TILE), (self.count, TILE))
            self.taken = self.step < time
            self.packed = None
            return
        self.count = slot_count_of(time, TILE, cu_seqlens.shape[0] - 1)
        self.packed = of = slots(xp, cu_seqlens, time, TILE, self.count)
        bounds = xp.clip(cu_seqlens, 0, time)
        self.owner, self.step, self.taken = of.owner, of.step, of.taken
        self.start = bounds[:-1][of.owner]
        self.lengths = bounds[1:] - bounds[:-1]

    def cut(self, array: Any, axis: int) -> Any:
        """An array along an axis as (count, TILE, the other axes)."""
        array = self.xp.moveaxis(array, axis, 0)
        rest = array.shape[1:]
        if self.packed is not None:
            if self.time == 0:  # there is nothing to take tiles from
                return self.xp.zeros(array, (self.count, TILE, *rest), str(array.dtype).removeprefix("torch."))
            taken = self.xp.reshape(self.taken, (self.count, TILE, *(1 for _ in rest)))
            return self.xp.where(taken, array[self.packed.source], 0)
        if padding := self.count * TILE - self.time:
            zeros = self.xp.zeros(array, (padding, *rest), str(array.dtype).removeprefix("torch."))
            array = self.xp.concat([array, zeros], 0)
        return self.xp.reshape(array, (self.count, TILE, *rest))

    def join(self, array: Any, axis: int) -> Any:
        """The inverse of `cut`; zeros at steps that belong to no sequence."""
        array = self.xp.reshape(array, (self.count * TILE, *array.shape[2:]))
        if self.packed is None:
            array = array[: self.time]
        else:
            inside = self.xp.reshape(self.packed.inside, (self.time, *(1 for _ in array.shape[1:])))
            array = self.xp.where(inside, array[self.packed.place], 0)
        return self.xp.moveaxis(array, 0, axis)
