"""How portable paths cut time in chunks: rows side by side, or packed sequences each from its own start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .xp import Namespace


class Sequences(Protocol):
    """What a spec tells of its sequences."""

    @property
    def time(self) -> int:
        """Steps of a row."""

    @property
    def packed(self) -> bool:
        """Whether several sequences lie one after the other in one row."""

    @property
    def sequences(self) -> int:
        """How many there are."""

    @property
    def chunk(self) -> int:
        """Steps of a chunk."""

    @property
    def chunks(self) -> int:
        """Places for the chunks of a row."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sequences in chunks of so many steps."""

    time: int
    packed: bool
    sequences: int
    chunk: int

    @property
    def chunks(self) -> int:
        """Places for the chunks of a row."""
        return places(self, self.chunk)


class Rows:
    """Each row of the batch is a sequence; the last chunk is filled up with zeros, steps of which change no state.

    Attributes:
        initial: the state before the first chunk, (batch, ...).
        final_gradient: the gradient of the state after the last chunk.
        starts: arrays over the chunks that `enter` needs.
        ends: arrays over the chunks that `leave` needs.
    """

    def __init__(self, xp: Namespace, spec: Sequences, initial: Any, final_gradient: Any) -> None:
        self.xp = xp
        self.spec = spec
        self.initial = initial
        self.final_gradient = final_gradient
        self.starts: tuple[Any, ...] = ()
        self.ends: tuple[Any, ...] = ()

    def cut(self, array: Any) -> Any:
        """(batch, time, ...) as (chunks, steps, batch, ...)."""
        batch, time, *rest = array.shape
        padding = self.spec.chunks * self.spec.chunk - time
        if padding:
            zeros = self.xp.zeros(array, (batch, padding, *rest), str(array.dtype).removeprefix("torch."))
            array = self.xp.concat([array, zeros], 1)
        array = self.xp.reshape(array, (batch, self.spec.chunks, self.spec.chunk, *rest))
        return self.xp.moveaxis(array, 0, 2)

    def join(self, array: Any) -> Any:
        """The way back."""
        chunks, steps, batch, *rest = array.shape
        array = self.xp.reshape(self.xp.moveaxis(array, 2, 0), (batch, chunks * steps, *rest))
        return array[:, : self.spec.time]

    def clear(self, array: Any) -> Any:
        """(batch, time, ...) with zeros at the steps outside of every sequence."""
        return array

    def enter(self, state: Any, starts: Any) -> Any:
        """The state that enters a chunk, from the one that left the chunk before."""
        return state

    def leave(self, gradient: Any, ends: Any) -> Any:
        """The gradient of the state that leaves a chunk, from that of the one that enters the next."""
        return gradient

    def at_ends(self, last: Any, after: Any) -> Any:
        """The state that leaves each sequence, from the last of all and those after each chunk."""
        return last

    def at_starts(self, first: Any, before: Any) -> Any:
        """The gradient of each initial state, from that of the first of all and those before each chunk."""
        return first


class Packed(Rows):
    """Sequences one after the other in one row. Each has the places that `places` tells, at least one."""

    def __init__(self, xp: Namespace, spec: Sequences, initial: Any, final_gradient: Any, cu_seqlens: Any) -> None:
        super().__init__(xp, spec, initial, final_gradient)
        bounds = xp.clip(cu_seqlens, 0, spec.time)
        begin, end = bounds[:-1], bounds[1:]
        number = xp.arange(cu_seqlens, spec.sequences)
        self.first = begin // spec.chunk + number  # chunk of each sequence
        self.last = end // spec.chunk + number

        chunk = xp.arange(cu_seqlens, spec.chunks)
        owner = xp.sum(xp.astype(self.first[None] <= chunk[:, None], "int32"), 1) - 1
        owner = xp.where(owner < 0, 0, owner)
        step = (chunk - self.first[owner])[:, None] * spec.chunk + xp.arange(cu_seqlens, spec.chunk)
        taken = (step >= 0) & (step < (end - begin)[owner][:, None])
        self.taken = taken[:, :, None]
        self.source = xp.where(taken, begin[owner][:, None] + step, 0)

        time = xp.arange(cu_seqlens, spec.time)
        own = xp.sum(xp.astype(end[None] <= time[:, None], "int32"), 1)
        inside = own < spec.sequences
        own = xp.where(inside, own, 0)
        step = time - begin[own]
        self.inside = (inside & (step >= 0))[None]
        self.place = xp.where(self.inside[0], self.first[own] * spec.chunk + step, 0)

        mark = (spec.chunks, 1, *(1 for _ in initial.shape[1:]))
        starts = xp.reshape(self.first[owner] == chunk, mark)
        ends = xp.reshape(self.last[owner] == chunk, mark)
        self.starts = (starts, self.initial[owner][:, None])
        self.ends = (ends, self.final_gradient[owner][:, None])
        self.initial, self.final_gradient = self.initial[:1], self.final_gradient[:1]

    def cut(self, array: Any) -> Any:
        """(1, time, ...) as (chunks, steps, 1, ...)."""
        rest = array.shape[2:]
        taken = self.xp.reshape(self.taken, (*self.taken.shape, *(1 for _ in rest)))
        return self.xp.where(taken, array[0][self.source][:, :, None], 0)

    def join(self, array: Any) -> Any:
        """The way back; steps outside of any sequence are zeros."""
        steps = self.xp.reshape(array, (-1, *array.shape[3:]))
        return self.clear(steps[self.place][None])

    def clear(self, array: Any) -> Any:
        """(1, time, ...) with zeros at the steps outside of every sequence."""
        inside = self.xp.reshape(self.inside, (*self.inside.shape, *(1 for _ in array.shape[2:])))
        return self.xp.where(inside, array, 0)

    def enter(self, state: Any, starts: Any) -> Any:
        """The state that enters a chunk, from the one that left the chunk before."""
        return self.xp.where(starts[0], starts[1], state)

    def leave(self, gradient: Any, ends: Any) -> Any:
        """The gradient of the state that leaves a chunk, from that of the one that enters the next."""
        return self.xp.where(ends[0], ends[1], gradient)

    def at_ends(self, last: Any, after: Any) -> Any:
        """The state that leaves each sequence, from the last of all and those after each chunk."""
        return after[self.last][:, 0]

    def at_starts(self, first: Any, before: Any) -> Any:
        """The gradient of each initial state, from that of the first of all and those before each chunk."""
        return before[self.first][:, 0]


def cut_time(xp: Namespace, spec: Sequences, initial: Any, final_gradient: Any, cu_seqlens: Any = None) -> Rows:
    """The chunks of a call.

    Args:
        xp: the framework.
        spec: the call.
        initial: the state of every sequence, (sequences, ...).
        final_gradient: the gradient of every sequence's last state, likewise.
        cu_seqlens: of packed sequences.
    """
    if spec.packed:
        return Packed(xp, spec, initial, final_gradient, cu_seqlens)
    return Rows(xp, spec, initial, final_gradient)


def places(spec: Sequences, steps: int) -> int:
    """Places of a row in an array that has one for every so many steps of a sequence.

    A sequence of a packed row owns the places from start // steps + its number on. It never needs more than
    end // steps - start // steps + 1 of them, so it ends where the next one begins, or before.
    """
    if spec.packed:
        return spec.time // steps + spec.sequences
    return -(-spec.time // steps)
