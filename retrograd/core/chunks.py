"""Cuts time into chunks for portable paths: all rows of a batch alike, or each packed sequence from its own start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .packed import slots
from .spec import slot_count
from .xp import Namespace


class Sequences(Protocol):
    """The attributes of a spec that describe its sequences."""

    @property
    def time(self) -> int:
        """Steps of a row."""

    @property
    def packed(self) -> bool:
        """Whether several sequences are packed into one row."""

    @property
    def sequences(self) -> int:
        """The number of sequences."""

    @property
    def chunk(self) -> int:
        """Steps of a chunk."""

    @property
    def chunks(self) -> int:
        """The number of chunk slots of a row; see `slot_count`."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """A description of sequences cut into chunks of `chunk` steps; it implements `Sequences`."""

    time: int
    packed: bool
    sequences: int
    chunk: int

    @property
    def chunks(self) -> int:
        """The number of chunk slots of a row; see `slot_count`."""
        return slot_count(self, self.chunk)


class Rows:
    """The chunks of a batch in which each row is a sequence; the last chunk is padded with zeros.

    A step of zeros must not change the state.

    Attributes:
        initial: the state before the first chunk, (batch, ...).
        final_gradient: the gradient of the state after the last chunk.
        starts: arrays with one entry per chunk, for `enter`.
        ends: arrays with one entry per chunk, for `leave`.
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
        """The inverse of `cut`."""
        chunks, steps, batch, *rest = array.shape
        array = self.xp.reshape(self.xp.moveaxis(array, 2, 0), (batch, chunks * steps, *rest))
        return array[:, : self.spec.time]

    def clear(self, array: Any) -> Any:
        """(batch, time, ...) with zeros at the steps outside of every sequence."""
        return array

    def enter(self, state: Any, starts: Any) -> Any:
        """The state at the start of a chunk, from the state at the end of the previous chunk."""
        return state

    def leave(self, gradient: Any, ends: Any) -> Any:
        """The gradient of the state at the end of a chunk, from that of the state at the start of the next chunk."""
        return gradient

    def at_ends(self, last: Any, after: Any) -> Any:
        """The final state of each sequence, from the state after the last chunk and those after each chunk."""
        return last

    def at_starts(self, first: Any, before: Any) -> Any:
        """The gradient of each initial state, from those of the state before the first chunk and before each chunk."""
        return first


class Packed(Rows):
    """The chunks of packed sequences. Each sequence has at least one chunk slot; see `slot_count`."""

    def __init__(self, xp: Namespace, spec: Sequences, initial: Any, final_gradient: Any, cu_seqlens: Any) -> None:
        super().__init__(xp, spec, initial, final_gradient)
        of = slots(xp, cu_seqlens, spec.time, spec.chunk, spec.chunks)
        self.first, self.last, owner = of.first, of.last, of.owner
        self.taken, self.source = of.taken[:, :, None], of.source
        self.inside, self.place = of.inside[None], of.place

        chunk = xp.arange(cu_seqlens, spec.chunks)
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
        """The inverse of `cut`; steps outside of every sequence are zeros."""
        steps = self.xp.reshape(array, (-1, *array.shape[3:]))
        return self.clear(steps[self.place][None])

    def clear(self, array: Any) -> Any:
        """(1, time, ...) with zeros at the steps outside of every sequence."""
        inside = self.xp.reshape(self.inside, (*self.inside.shape, *(1 for _ in array.shape[2:])))
        return self.xp.where(inside, array, 0)

    def enter(self, state: Any, starts: Any) -> Any:
        """The state at the start of a chunk, from the state at the end of the previous chunk."""
        return self.xp.where(starts[0], starts[1], state)

    def leave(self, gradient: Any, ends: Any) -> Any:
        """The gradient of the state at the end of a chunk, from that of the state at the start of the next chunk."""
        return self.xp.where(ends[0], ends[1], gradient)

    def at_ends(self, last: Any, after: Any) -> Any:
        """The final state of each sequence, from the state after the last chunk and those after each chunk."""
        return after[self.last][:, 0]

    def at_starts(self, first: Any, before: Any) -> Any:
        """The gradient of each initial state, from those of the state before the first chunk and before each chunk."""
        return before[self.first][:, 0]


def cut_time(xp: Namespace, spec: Sequences, initial: Any, final_gradient: Any, cu_seqlens: Any = None) -> Rows:
    """The chunks of a call.

    Args:
        xp: the framework's array functions.
        spec: the call.
        initial: the initial state of each sequence, (sequences, ...).
        final_gradient: the gradient of each sequence's final state, (sequences, ...).
        cu_seqlens: the boundaries of packed sequences.
    """
    if spec.packed:
        return Packed(xp, spec, initial, final_gradient, cu_seqlens)
    return Rows(xp, spec, initial, final_gradient)
