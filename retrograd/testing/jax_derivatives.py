"""Derivatives of every order and kind in JAX: every road to them gives the reference's.

What they are, and their names, stand in `derivatives`: a road gives the Hessian times v (`dd x`, ...), or the tangents
of the outputs along v (`t y`, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from . import derivatives, jax_call
from .budget import SLACK, draws_for
from .compare import assert_within_budget
from .contract import drawn
from .draw import Arrays, Function, normal_as, output_name, upcast

DRAWS = 2
Named = Mapping[str, jax.Array]


@dataclass(frozen=True)
class Point:
    """Where derivatives are taken, as `derivatives.Point`; gradients are in PyTorch's convention.

    Attributes:
        function: gives a tuple of outputs, from arrays by name.
        inputs: those that have no derivative.
        came_in: c.
        x: those that have one.
        v: a direction for each of them.
    """

    function: Callable[[Named], tuple[jax.Array, ...]]
    inputs: Named
    came_in: Sequence[jax.Array]
    x: Named
    v: Named

    def outputs(self, x: Named) -> tuple[jax.Array, ...]:
        """y."""
        return self.function({**self.inputs, **x})

    def scalar(self, x: Named) -> jax.Array:
        """L."""
        return inner(self.came_in, self.outputs(x))

    def penalty(self, x: Named) -> jax.Array:
        """P."""
        return inner(gradient(self.scalar, x), self.v)

    def along(self, function: Function, v: Named) -> Any:
        """The tangents of a function's results."""
        return jax.jvp(function, (self.x,), (v,))[1]


def inner(a: Any, b: Any) -> jax.Array:
    """The sum of Re <a, b>."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum((jnp.sum((jnp.conj(x) * y).real.astype(jnp.float32)) for x, y in pairs), jnp.zeros(()))


def gradient(function: Function, x: Any) -> Any:
    """Of a scalar."""
    return jax.tree.map(jax_call.conjugate, jax.grad(function)(x))


def forward(point: Point) -> Any:
    """`jax.jvp`, under `jax.vmap` as in `jax.jacfwd`."""
    return tangents(of_the_second(partial(point.along, point.outputs), point.v))


def forward_over_reverse(point: Point) -> Any:
    """`jax.jvp` of `jax.grad`, under `jax.vmap` as in `jax.hessian`."""
    return hessian(of_the_second(partial(point.along, partial(gradient, point.scalar)), point.v))


def reverse_over_reverse(point: Point) -> Any:
    """`jax.grad` of `jax.grad`."""
    return hessian(gradient(point.penalty, point.x))


def reverse_over_forward(point: Point) -> Any:
    """`jax.grad` of `jax.jvp`."""
    return hessian(gradient(lambda x: jax.jvp(point.scalar, (x,), (point.v,))[1], point.x))


def by_name(point: Point) -> Any:
    """`jax.grad` of one argument's gradient after the other's."""

    def penalty(x: Named) -> jax.Array:
        own = {name: gradient(lambda one, name=name: point.scalar({**x, name: one}), x[name]) for name in x}
        return inner(own, point.v)

    return hessian(gradient(penalty, point.x))


def of_the_second(linear: Function, v: Named) -> Any:
    """A linear function of v, computed for 2 v and v side by side."""
    made = jax.vmap(linear)({name: jnp.stack((2 * array, array)) for name, array in v.items()})
    return jax.tree.map(lambda array: array[1], made)


def hessian(found: Named) -> Named:
    """dP/dx, named."""
    return {f"dd {name}": array for name, array in found.items()}


def tangents(found: Sequence[jax.Array]) -> Named:
    """Tangents, named."""
    return {f"t {output_name(place)}": array for place, array in enumerate(found)}


Road = Callable[[Point], Any]
ROADS: dict[str, Road] = {
    road.__name__: road for road in (forward, reverse_over_reverse, forward_over_reverse, reverse_over_forward, by_name)
}


def check_road(room: Room, case: Case, road: str, device: str, seed: int) -> None:
    """On a road, derivatives keep the error budget that the reference's double backward in the same dtypes sets."""
    draws: list[tuple[Arrays, Arrays, Arrays]] = []
    for i in range(min(draws_for(case), DRAWS)):
        inputs, came_in = drawn(room, case, device, seed * 1000 + i)
        generator = torch.Generator(device).manual_seed(seed * 1000 + i)
        wanted = jax_call.wanted(inputs)
        v = {name: normal_as(inputs[name].shape, inputs[name].dtype, generator) for name in wanted}
        plain = derivatives.by_name(derivatives.point(room.plain or room.reference, case, inputs, came_in, v))
        wide, wide_v = ({name: upcast(tensor) for name, tensor in given.items()} for given in (inputs, v))
        wide_g = [upcast(gradient) for gradient in came_in]
        exact = derivatives.by_name(derivatives.point(room.reference, case, wide, wide_g, wide_v, torch.float64))
        if i == 0:
            # A third of the time to compile, which is most of the check's.
            run = jitted(room, case, ROADS[road], {"xla_backend_optimization_level": 0} if device == "cpu" else {})
        made = run(arrays(inputs), [jax_call.to_jax(g) for g in came_in], arrays(v))
        draws.append(({name: jax_call.to_torch(a, came_in[0].device) for name, a in made.items()}, plain, exact))
    assert_within_budget(draws, f"{room.name}, {case.name}: {road}", SLACK)


def jitted(room: Room, case: Case, road: Road, options: Mapping[str, Any]) -> Function:
    """A road as a function of inputs, incoming gradients and directions, compiled with these options of XLA."""
    function, names = room.jax(), tuple(case.inputs)

    def outputs(given: Named) -> tuple[jax.Array, ...]:
        return jax_call.outputs(function, names, [given[name] for name in names], case.options)

    def walk(inputs: Named, came_in: Sequence[jax.Array], v: Named) -> Any:
        rest = {name: array for name, array in inputs.items() if name not in v}
        return road(Point(outputs, rest, came_in, {name: inputs[name] for name in v}, v))

    made: Function = jax.jit(walk, compiler_options=dict(options))
    return made


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, jax.Array]:
    """The tensors as JAX's arrays."""
    return {name: jax_call.to_jax(tensor) for name, tensor in tensors.items()}
