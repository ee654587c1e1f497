"""How the portable path cuts time in chunks: rows side by side, or packed sequences each from its own start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.xp import Namespace

from .spec import Spec

Arrays = Mapping[str, Any]
BLOCK = 32  # steps of a block, at most; a chunk is a whole number of blocks


class Rows:
    """Each row of the batch is a sequence; the last chunk is filled up with zeros, steps of which change no state.

    States here are (batch, states, channels).

    Attributes:
        steps: of a chunk; of a single one that is no longer than a block, as many as there are.
        initial: the state before the first chunk.
        final_gradient: the gradient of the state after the last chunk.
        starts: arrays over the chunks that `enter` needs.
        ends: arrays over the chunks that `leave` needs.
    """

    def __init__(self, xp: Namespace, spec: Spec, arrays: Arrays) -> None:
        self.xp = xp
        self.spec = spec
        self.like = arrays["x"]
        # Two at least: a loop of one step XLA takes apart, and then fuses other multiplications with additions.
        few = not spec.packed and spec.time <= BLOCK
        self.steps = min(spec.chunk, max(spec.time, 2)) if few else spec.chunk
        self.initial = self._state(arrays.get("initial_state"))
        self.final_gradient = self._state(arrays.get("dfinal_state"))
        self.starts: tuple[Any, ...] = ()
        self.ends: tuple[Any, ...] = ()

    def _state(self, state: Any) -> Any:
        """A state of every row; zeros where there is none."""
        if state is None:
            sequences, channels, N = self.spec.state.shape
            return self.xp.zeros(self.like, (sequences, N, channels), self.spec.state_dtype)
        return self.xp.moveaxis(state, -1, -2)

    def cut(self, array: Any) -> Any:
        """(batch, time, ...) as (chunks, steps, batch, ...)."""
        batch, time, *rest = array.shape
        padding = self.spec.chunks * self.steps - time
        if padding:
            zeros = self.xp.zeros(array, (batch, padding, *rest), str(array.dtype).removeprefix("torch."))
            array = self.xp.concat([array, zeros], 1)
        array = self.xp.reshape(array, (batch, self.spec.chunks, self.steps, *rest))
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
    """Sequences one after the other in one row. Each has the places that `Spec.chunks` tells, at least one."""

    def __init__(self, xp: Namespace, spec: Spec, arrays: Arrays) -> None:
        super().__init__(xp, spec, arrays)
        bounds = xp.clip(arrays["cu_seqlens"], 0, spec.time)
        begin, end = bounds[:-1], bounds[1:]
        number = xp.arange(self.like, spec.sequences)
        self.first = begin // spec.chunk + number  # chunk of each sequence
        self.last = end // spec.chunk + number

        chunk = xp.arange(self.like, spec.chunks)
        owner = xp.sum(xp.astype(self.first[None] <= chunk[:, None], "int32"), 1) - 1
        owner = xp.where(owner < 0, 0, owner)
        step = (chunk - self.first[owner])[:, None] * spec.chunk + xp.arange(self.like, spec.chunk)
        taken = (step >= 0) & (step < (end - begin)[owner][:, None])
        self.taken = taken[:, :, None]
        self.source = xp.where(taken, begin[owner][:, None] + step, 0)

        time = xp.arange(self.like, spec.time)
        own = xp.sum(xp.astype(end[None] <= time[:, None], "int32"), 1)
        inside = own < spec.sequences
        own = xp.where(inside, own, 0)
        step = time - begin[own]
        self.inside = (inside & (step >= 0))[None]
        self.place = xp.where(self.inside[0], self.first[own] * spec.chunk + step, 0)

        mark = (spec.chunks, 1, 1, 1)
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


def cut_time(xp: Namespace, spec: Spec, arrays: Arrays) -> Rows:
    """The chunks of a call."""
    return (Packed if spec.packed else Rows)(xp, spec, arrays)
