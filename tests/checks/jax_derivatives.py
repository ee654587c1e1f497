"""First and second derivatives by every JAX API ("road"): equal to the reference's.

`derivatives` defines them and their names: a road computes the Hessian times v (`dd x`, ...), or the tangents of the
outputs along v (`t y`, ...).
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

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing import jax_call
from retrograd.testing.budget import SLACK, draws_for
from retrograd.testing.compare import assert_within_budget
from retrograd.testing.draw import Arrays, Function, normal_as, output_name, upcast

from . import derivatives
from .contract import drawn

DRAWS = 2
Named = Mapping[str, jax.Array]


@dataclass(frozen=True)
class Point:
    """The point at which derivatives are computed, as `derivatives.Point`; gradients are in PyTorch's convention.

    Attributes:
        function: from arrays by name to a tuple of outputs.
        inputs: the inputs that have no derivative.
        incoming: c.
        x: the inputs that have a derivative.
        v: a direction for each x.
    """

    function: Callable[[Named], tuple[jax.Array, ...]]
    inputs: Named
    incoming: Sequence[jax.Array]
    x: Named
    v: Named

    def outputs(self, x: Named) -> tuple[jax.Array, ...]:
        """y."""
        return self.function({**self.inputs, **x})

    def scalar(self, x: Named) -> jax.Array:
        """L."""
        return inner(self.incoming, self.outputs(x))

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
    """The gradient of a scalar function."""
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
    """`jax.grad` of the gradients computed one argument at a time."""

    def penalty(x: Named) -> jax.Array:
        own = {name: gradient(lambda one, name=name: point.scalar({**x, name: one}), x[name]) for name in x}
        return inner(own, point.v)

    return hessian(gradient(penalty, point.x))


def of_the_second(linear: Function, v: Named) -> Any:
    """A linear function of v, computed under `jax.vmap` for 2 v and v; the result for v."""
    both = jax.vmap(linear)({name: jnp.stack((2 * array, array)) for name, array in v.items()})
    return jax.tree.map(lambda array: array[1], both)


def hessian(found: Named) -> Named:
    """dP/dx, named."""
    return {f"dd {name}": array for name, array in found.items()}


def tangents(found: Sequence[jax.Array]) -> Named:
    """Tangents, named."""
    return {f"t {output_name(place)}": array for place, array in enumerate(found)}


Road = Callable[[Point], Any]
ROADS: dict[str, Road] = {
    road.__name__: road for road in (by_name, forward, reverse_over_reverse, forward_over_reverse, reverse_over_forward)
}


def check_road(info: OpInfo, case: Case, road: str, device: str, seed: int) -> None:
    """Derivatives by a road are within the error budget set by the reference's double backward in the same dtypes."""
    draws: list[tuple[Arrays, Arrays, Arrays]] = []
    for i in range(min(draws_for(case), DRAWS)):
        inputs, incoming = drawn(info, case, device, seed * 1000 + i)
        generator = torch.Generator(device).manual_seed(seed * 1000 + i)
        wanted = jax_call.wanted(inputs)
        v = {name: normal_as(inputs[name].shape, inputs[name].dtype, generator) for name in wanted}
        plain = derivatives.by_name(derivatives.point(info.plain or info.reference, case, inputs, incoming, v))
        wide, wide_v = ({name: upcast(tensor) for name, tensor in tensors.items()} for tensors in (inputs, v))
        wide_g = [upcast(gradient) for gradient in incoming]
        exact = derivatives.by_name(derivatives.point(info.reference, case, wide, wide_g, wide_v, torch.float64))
        if i == 0:
            # With little optimisation, compiling takes less time, which is most of the time of the check. With none,
            # XLA of jax 0.10.2 has NaN for attention with a bias and slopes, and the right numbers otherwise.
            run = jitted(info, case, ROADS[road], {"xla_backend_optimization_level": 1} if device == "cpu" else {})
        results = run(arrays(inputs), [jax_call.to_jax(g) for g in incoming], arrays(v))
        draws.append(({name: jax_call.to_torch(a, incoming[0].device) for name, a in results.items()}, plain, exact))
    assert_within_budget(draws, f"{info.name}, {case.name}: {road}", SLACK)


def jitted(info: OpInfo, case: Case, road: Road, options: Mapping[str, Any]) -> Function:
    """A road as a function of inputs, incoming gradients and directions, compiled with these XLA options."""
    function, names = info.jax(), tuple(case.inputs)

    def outputs(inputs: Named) -> tuple[jax.Array, ...]:
        return jax_call.outputs(function, names, [inputs[name] for name in names], case.options)

    def walk(inputs: Named, incoming: Sequence[jax.Array], v: Named) -> Any:
        rest = {name: array for name, array in inputs.items() if name not in v}
        return road(Point(outputs, rest, incoming, {name: inputs[name] for name in v}, v))

    compiled: Function = jax.jit(walk, compiler_options=dict(options))
    return compiled


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, jax.Array]:
    """The tensors as JAX arrays."""
    return {name: jax_call.to_jax(tensor) for name, tensor in tensors.items()}
