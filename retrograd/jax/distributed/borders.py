"""Where a device's steps begin and end among those of all devices, and which sequences cross its borders."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from retrograd.core.errors import check_nondecreasing
from retrograd.core.jax.arguments import in_int32, readable
from retrograd.core.jax.sharding import vary_over, varying


class Crossing(NamedTuple):
    """The sequence with steps on both sides of a border.

    Attributes:
        is_one: whether there is one.
        row: its number among packed sequences, within their range where there is none; None where each row of a batch
            is a sequence.
        begin, end: its steps among those of all devices.
    """

    is_one: jax.Array
    row: jax.Array | None
    begin: jax.Array
    end: jax.Array

    def of(self, states: jax.Array) -> jax.Array:
        """The states that cross."""
        return states if self.row is None else jax.lax.dynamic_slice_in_dim(states, self.row, 1)

    def within(self, states: jax.Array, those: jax.Array) -> jax.Array:
        """All states, with those that cross in their place."""
        if self.row is None:
            return jnp.where(self.is_one, those, states)
        replaced = jax.lax.dynamic_update_slice_in_dim(states, those, self.row, 0)
        return jnp.where(self.is_one, replaced, states)


class Borders(NamedTuple):
    """A device's steps.

    Attributes:
        axis: the name of the mesh's axis.
        world: the number of devices along it.
        rank: this device's number.
        time: the steps of each device.
        bounds: (S + 1,): the boundaries of packed sequences among the steps of all devices; None where each row of a
            batch is a sequence.
    """

    axis: str
    world: int
    rank: jax.Array
    time: int
    bounds: jax.Array | None

    def packed(self, op: str, cu_seqlens: Any) -> Borders:
        """The same with boundaries, whose values are checked where they are readable."""
        bounds = in_int32(cu_seqlens)
        if not isinstance(bounds, jax.Array | np.ndarray):
            return self  # the op refuses it, if it is not None
        if bounds.dtype == np.int32 and bounds.ndim == 1 and readable(bounds):
            check_nondecreasing(op, "cu_seqlens", np.asarray(bounds).tolist(), self.world * self.time)
        return self._replace(bounds=jnp.asarray(bounds))

    @property
    def start(self) -> jax.Array:
        """The first of this device's steps."""
        return self.rank * self.time

    @property
    def stop(self) -> jax.Array:
        """The step after this device's last one."""
        return self.start + self.time

    def boundaries(self, first: jax.Array, count: int) -> jax.Array | None:
        """(S + 1,): the boundaries among `count` steps from the step `first` on; others' sequences are empty there."""
        return None if self.bounds is None else jnp.clip(self.bounds - first, 0, count)

    def crossing(self, border: jax.Array) -> Crossing:
        """The sequence that crosses the border before a step."""
        if self.bounds is None:
            zero, end = jnp.zeros_like(border), jnp.full_like(border, self.world * self.time)
            return Crossing((border > 0) & (border < end), None, zero, end)
        sequences = len(self.bounds) - 1
        row = jnp.clip(jnp.searchsorted(self.bounds, border) - 1, 0, max(0, sequences - 1))
        begin, end = self.bounds[row], self.bounds[row + 1]
        return Crossing((begin < border) & (border < end), row, begin, end)

    def positions(self) -> jax.Array:
        """(time,): of each step in its sequence; 0 outside of every sequence."""
        steps = self.start + jnp.arange(self.time, dtype=jnp.int32)
        if self.bounds is None:
            return steps
        row = jnp.searchsorted(self.bounds, steps, side="right") - 1
        inside = (row >= 0) & (row < len(self.bounds) - 1)
        return jnp.where(inside, steps - self.bounds[jnp.maximum(row, 0)], 0)

    def from_next(self, x: Any, back: bool = False) -> Any:
        """What the device behind this one has (the one before it, with `back`); zeros where there is none."""
        pairs = [(rank, rank + 1) if back else (rank + 1, rank) for rank in range(self.world - 1)]
        return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, self.axis, pairs), x)

    def finals(self, own: jax.Array, reverse: bool = False) -> jax.Array:
        """The states of all sequences on all devices, each from the device where its sequence ends.

        With `reverse`, from where it begins.
        """
        every = jax.lax.all_gather(own, self.axis, to="invarying")
        if self.bounds is None:
            return every[0 if reverse else -1]
        place = self.bounds[:-1] if reverse else self.bounds[1:] - 1
        where = jnp.clip(place // max(1, self.time), 0, self.world - 1)
        return jnp.take_along_axis(every, where.reshape(1, -1, *(1,) * (own.ndim - 1)), 0)[0]

    def everywhere(self, flag: jax.Array) -> jax.Array:
        """Whether a flag is set on all devices, along every axis over which it varies."""
        for axis in sorted(varying(flag)):
            flag = jax.lax.all_gather(flag, axis, to="invarying").all()
        return flag


def vary_along(axis: str, x: Any) -> Any:
    """Arrays, in any pytree, as values that each device along the axis has its own of."""
    return jax.tree.map(lambda leaf: vary_over(frozenset([axis]), leaf), x)
