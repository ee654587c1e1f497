"""The convolution: the inputs before a device's first step come from the device before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from retrograd.core.errors import bad_shape
from retrograd.core.jax.arguments import arrays_of, params_of
from retrograd.core.jax.context import Results
from retrograd.core.jax.sharding import vary_alike
from retrograd.core.op import Op

from .borders import Borders, Crossing, vary_along

Arrays = dict[str, Any]


def convolution(
    borders: Borders, op: Op, run: Callable[..., Results], arrays: Arrays, options: dict[str, Any]
) -> Results:
    """`causal_conv1d` over the steps of all devices.

    The gradients of the last inputs before a border come from steps on both sides of it. They are computed once more,
    by the op itself, from these few steps together: a sum of both sides' rounded gradients would have other bits.
    """
    borders = borders.packed(op.name, arrays["cu_seqlens"])
    given = arrays_of(op.name, arrays, required=2)
    always = {**options, "return_final_state": True}
    local = {**given, "cu_seqlens": borders.boundaries(borders.start, borders.time)}
    spec = op.spec(params_of(local), always)
    count = given["weight"].shape[1] - 1
    if borders.time < count:
        expected = f"at least {count} steps on each device, those that a state has"
        raise bad_shape(op.name, "x", given["x"].shape, expected)
    if given["initial_state"] is None:
        state = spec["final_state"]
        given["initial_state"] = jnp.zeros(state.shape, state.dtype)
    names = [name for name, array in given.items() if array is not None and name != "cu_seqlens"]
    varied = vary_alike(vary_along(borders.axis, [given[name] for name in names]))
    own = dict(zip(names, varied, strict=True))
    before = borders.from_next(jax.lax.stop_gradient(_last(own["x"], count)), back=True)
    entry = borders.crossing(borders.start)
    own["initial_state"] = _states(entry, borders.start - entry.begin, own["initial_state"], before)
    filtered = Filtered(run, tuple(always.items()), borders.axis, borders.world, count)
    completed = jax.custom_vjp(partial(_completed, filtered))
    completed.defvjp(partial(_forward, filtered), partial(_backward, filtered))
    y, final = completed(own, borders.bounds)
    return y, borders.finals(final) if options["return_final_state"] else None


@dataclass(frozen=True)
class Filtered:
    """What a call has beside its arrays: the op on one device, its options, the mesh's axis, and a state's inputs."""

    run: Callable[..., Results]
    options: tuple[tuple[str, Any], ...]
    axis: str
    world: int
    count: int

    def borders(self, own: Arrays, bounds: jax.Array | None) -> Borders:
        """Those of this device."""
        return Borders(self.axis, self.world, jax.lax.axis_index(self.axis), own["x"].shape[1], bounds)

    def results(self, cu_seqlens: jax.Array | None, own: Arrays) -> Results:
        """The op's."""
        absent = dict.fromkeys(("x", "weight", "bias"))
        return self.run({**absent, **own, "cu_seqlens": cu_seqlens}, dict(self.options))


def _completed(filtered: Filtered, own: Arrays, bounds: jax.Array | None) -> Results:
    """The results for this device's steps, with the whole gradient of x."""
    return _forward(filtered, own, bounds)[0]


def _forward(filtered: Filtered, own: Arrays, bounds: jax.Array | None) -> tuple[Results, Any]:
    borders = filtered.borders(own, bounds)
    results, back = jax.vjp(partial(filtered.results, borders.boundaries(borders.start, borders.time)), own)
    return results, (own, bounds, back)


def _backward(filtered: Filtered, saved: Any, gradients: tuple[jax.Array, jax.Array]) -> tuple[Arrays, None]:
    own, bounds, back = saved
    found: Arrays
    (found,) = back(gradients)
    if filtered.count:
        found["x"] = _with_last(filtered.borders(own, bounds), filtered, own, found["x"], gradients)
    return {name: _without_derivative(x) for name, x in found.items()}, None


@jax.custom_jvp
def _without_derivative(x: jax.Array) -> jax.Array:
    """x, of which a derivative is refused: of those of the inputs before a border, others' parts would be missing."""
    return x


@_without_derivative.defjvp
def _refused(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError("causal_conv1d: a second derivative beside a context, expected first ones only")


def _with_last(
    borders: Borders, filtered: Filtered, own: Arrays, dx: jax.Array, gradients: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """dx with that of the last inputs before the border, computed from the steps on both sides of it."""
    (dy, dfinal), x, count = gradients, own["x"], filtered.count
    x_after, dy_after, dfinal_after = borders.from_next((x[:, :count], dy[:, :count], dfinal))
    first = borders.stop - count
    before = jnp.pad(x, ((0, 0), (count, 0), (0, 0)))[:, -2 * count : -count]
    entry, leaving = borders.crossing(first), borders.crossing(borders.stop)
    states = _states(entry, first - jnp.maximum(entry.begin, borders.start), own["initial_state"], before)
    near = {**own, "initial_state": states}
    within = borders.boundaries(first, 2 * count)
    window = jnp.concatenate([_last(x, count), x_after], axis=1)
    _, back = jax.vjp(lambda x: filtered.results(within, {**near, "x": x}), window)
    ended = leaving.end <= borders.stop + count  # a window that ends before the sequence has no part in its final state
    of_final = leaving.within(jnp.zeros_like(dfinal), jnp.where(ended, leaving.of(dfinal_after), 0))
    (dwindow,) = back((jnp.concatenate([_last(dy, count), dy_after], axis=1), of_final))
    of_sequence = leaving.is_one & (first + jnp.arange(count) >= leaving.begin)
    last = jnp.where(of_sequence[:, None], dwindow[:, :count], _last(dx, count))
    return jnp.concatenate([dx[:, : dx.shape[1] - count], last], axis=1)


def _states(crossing: Crossing, known: jax.Array, initial: jax.Array, before: jax.Array) -> jax.Array:
    """The states before a border: `initial`, but for the sequence that crosses it, of which inputs before it are known.

    Args:
        crossing: the sequence.
        known: how many of its inputs before the border are.
        initial: (S, D, W - 1).
        before: (B, W - 1, D): the inputs before the border.
    """
    own = crossing.of(initial)
    place = jnp.arange(own.shape[2]) + known
    older = jnp.take(own, jnp.minimum(place, own.shape[2] - 1), axis=2)
    return crossing.within(initial, jnp.where(place < own.shape[2], older, jnp.swapaxes(before, 1, 2)))


def _last(x: jax.Array, count: int) -> jax.Array:
    return x[:, x.shape[1] - count :]
