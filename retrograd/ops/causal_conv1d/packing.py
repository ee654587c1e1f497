"""Packed sequences as one row, each with its own W-1 steps before it: gathers for the portable path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrograd.core.packed import last_not_above
from retrograd.core.xp import Namespace

from .op import Spec


@dataclass(frozen=True)
class Packing:
    """The positions of packed sequences in that row, as int32 arrays.

    Attributes:
        spec: the call.
        source: for each step of the row, the index of its value: below T a step of x, from T on an entry of the
            states; the last index is a zero.
        final: for each step of the row, the index of its entry in the final states, or their number if it has none.
        place: for each step of x, its position in the row.
        inside: for each step of x, whether it belongs to a sequence (bool).
        initials, finals: for each entry of the initial and of the final states, its position in the row.
    """

    spec: Spec
    source: Any
    final: Any
    place: Any
    inside: Any
    initials: Any
    finals: Any

    def gather(self, xp: Namespace, x: Any, initial: Any) -> Any:
        """The row of x and the initial states (sequences, W-1, D) or zeros, with W-1 zeros before it."""
        rows = xp.reshape(x, (self.spec.time, self.spec.channels))
        states = self._zeros(xp, x, self.entries) if initial is None else self._entries(xp, initial)
        row = xp.concat([rows, states, self._zeros(xp, x, 1)], 0)[self.source]
        return xp.concat([self._zeros(xp, x, self.spec.width - 1), row], 0)[None]

    def spread(self, xp: Namespace, dy: Any) -> Any:
        """dy (1, T, D) as the row, with zeros at the states."""
        rows = xp.concat([xp.reshape(dy, (self.spec.time, self.spec.channels)), self._zeros(xp, dy, 1)], 0)
        return rows[xp.where(self.source < self.spec.time, self.source, self.spec.time)][None]

    def spread_finals(self, xp: Namespace, dfinal: Any) -> Any:
        """The final states' gradient (sequences, W-1, D) as a row, zero elsewhere."""
        return xp.concat([self._entries(xp, dfinal), self._zeros(xp, dfinal, 1)], 0)[self.final][None]

    def unpack(self, xp: Namespace, row: Any) -> Any:
        """The row at the steps of x; zeros outside of every sequence."""
        taken = row[0][self.place] if self.source.shape[0] else row[0]
        return xp.where(self.inside[:, None], taken, 0)[None]

    def steps_alone(self, xp: Namespace, row: Any) -> Any:
        """The row with zeros at all steps but those of x, since taps of the others reach into other sequences."""
        return xp.where((self.source < self.spec.time)[None, :, None], row, 0)

    def states_at(self, xp: Namespace, row: Any, places: Any) -> Any:
        """The states (sequences, D, W-1), from their entries at `places` of the row."""
        entries = xp.reshape(row[0][places], (self.spec.sequences, self.spec.width - 1, self.spec.channels))
        return xp.moveaxis(entries, 1, 2)

    @property
    def entries(self) -> int:
        """State entries of all sequences."""
        return self.spec.sequences * (self.spec.width - 1)

    def _entries(self, xp: Namespace, states: Any) -> Any:
        return xp.reshape(states, (self.entries, self.spec.channels))

    def _zeros(self, xp: Namespace, like: Any, steps: int) -> Any:
        return xp.zeros(like, (steps, self.spec.channels), self.spec.compute_dtype)


def pack(xp: Namespace, spec: Spec, cu_seqlens: Any) -> Packing:
    """The packing of a call; cu_seqlens is clipped to the steps of x."""
    T, S, before = spec.time, spec.sequences, spec.width - 1
    entries = S * before

    bounds = xp.clip(cu_seqlens, 0, T)
    starts = bounds + xp.arange(cu_seqlens, S + 1) * before  # of the sequences, with their states, in the row
    step, place = xp.arange(cu_seqlens, T), xp.arange(cu_seqlens, T + entries)

    owner = last_not_above(xp, bounds, step)
    inside = (owner >= 0) & (owner < S)
    place_of_step = xp.clip(step + (owner + 1) * before, 0, max(T + entries - 1, 0))

    at = last_not_above(xp, starts, place)
    known = (at >= 0) & (at < S)
    s = xp.clip(at, 0, max(S - 1, 0))
    offset = place - starts[s]
    of_x = xp.clip(bounds[s] + offset - before, 0, max(T - 1, 0))
    source = xp.where(offset < before, T + s * before + offset, of_x)
    last = place - (starts[xp.where(s < S, s + 1, s)] - before)  # index among the final steps

    entry, owner_of_entry = xp.arange(cu_seqlens, entries), xp.arange(cu_seqlens, entries)
    if before:
        owner_of_entry = entry // before
        entry = entry - owner_of_entry * before
    return Packing(
        spec,
        source=xp.where(known, source, T + entries),
        final=xp.where(known & (last >= 0), s * before + last, entries),
        place=place_of_step,
        inside=inside,
        initials=starts[owner_of_entry] + entry,
        finals=starts[owner_of_entry + 1] - before + entry,
    )
