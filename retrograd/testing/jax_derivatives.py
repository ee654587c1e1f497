"""Forward mode and second derivatives in JAX, judged against PyTorch's double backward of the definition in float64.

Of a call f with a gradient g for each output, let J be the derivative of f, and H that of the gradients in the inputs.
Forward mode gives J v, and each way to differentiate twice gives H v, for directions v.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from . import jax_call
from .budget import SLACK, draws_for
from .compare import assert_within_budget
from .contract import drawn
from .draw import Arrays, Function, leaves, normal_as, options, output_name, outputs, upcast

DIRECTIONS = 2
DRAWS = 2


def check_derivatives(room: Room, case: Case, device: str, seed: int) -> None:
    """Forward mode and every way to differentiate twice are right, `jax.vmap` over directions included.

    One argument, which the seed picks, is differentiated twice by itself too.
    """
    draws = []
    for i in range(min(draws_for(case), DRAWS)):
        inputs, gradients = drawn(room, case, device, seed * 1000 + i)
        wanted = jax_call.wanted(inputs)
        alone = wanted[seed % len(wanted)]
        generator = torch.Generator(device).manual_seed(seed * 1000 + i)
        directions = [
            {name: normal_as(inputs[name].shape, inputs[name].dtype, generator) for name in wanted}
            for _ in range(DIRECTIONS)
        ]
        plain = twice(room.plain or room.reference, inputs, options(case), gradients, directions, alone)
        exact = twice(
            room.reference,
            {name: upcast(tensor) for name, tensor in inputs.items()},
            options(case, torch.float64),
            [upcast(gradient) for gradient in gradients],
            [{name: upcast(tensor) for name, tensor in direction.items()} for direction in directions],
            alone,
        )
        found = jax_twice(room.jax(), case, inputs, gradients, directions, alone)
        draws.append(({name: found[name] for name in exact}, plain, exact))
    assert_within_budget(draws, f"{room.name}, {case.name}: derivatives", SLACK)


def twice(
    function: Function,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, Any],
    gradients: Sequence[Tensor],
    directions: Sequence[Mapping[str, Tensor]],
    alone: str,
) -> Arrays:
    """What `jax_twice` gives, by PyTorch's double backward; each quantity under the name of every way to it."""
    given = leaves(inputs)
    wanted = {name: tensor for name, tensor in given.items() if tensor.requires_grad}
    came = [gradient.detach().clone().requires_grad_() for gradient in gradients]
    first = _gradients(outputs(function, given, options), list(wanted.values()), came)
    by_name = dict(zip(wanted, first, strict=True))
    found: Arrays = {}
    for number, direction in enumerate(directions):
        along = _gradients([by_name[name] for name in direction], [*wanted.values(), *came], list(direction.values()))
        for place, tensor in enumerate(along[len(wanted) :]):
            found[f"{output_name(place)} along {number}"] = tensor.detach()
        for way in ("reverse over reverse", "forward over reverse", "reverse over forward"):
            if number == 0 or way == "forward over reverse":
                for name, tensor in zip(wanted, along, strict=False):
                    found[f"d {name} along {number}, {way}"] = tensor.detach()
    (own,) = _gradients([by_name[alone]], [given[alone]], [directions[0][alone]])
    found[f"d {alone} along itself"] = own.detach()
    return found


def _gradients(made: Sequence[Tensor], wanted: Sequence[Tensor], came: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients, to be differentiated again; zeros where nothing depends on anything."""
    pairs = [(tensor, gradient) for tensor, gradient in zip(made, came, strict=True) if tensor.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(tensor) for tensor in wanted)
    differentiated, gradients = zip(*pairs, strict=True)
    return torch.autograd.grad(
        differentiated, wanted, gradients, create_graph=True, allow_unused=True, materialize_grads=True
    )


def jax_twice(
    function: Function,
    case: Case,
    inputs: Mapping[str, Tensor],
    gradients: Sequence[Tensor],
    directions: Sequence[Mapping[str, Tensor]],
    alone: str,
) -> Arrays:
    """J v and H v for each direction, H v along the first in three ways, and the part of H that has one argument."""
    arrays = {name: jax_call.to_jax(tensor) for name, tensor in inputs.items()}
    came = [jax_call.to_jax(gradient) for gradient in gradients]
    along = [{name: jax_call.to_jax(tensor) for name, tensor in direction.items()} for direction in directions]
    every = jax.tree.map(lambda *one: jnp.stack(one), *along)
    run = _ways(function, tuple(case.inputs), tuple(case.options.items()), alone)
    made = run({name: arrays[name] for name in along[0]}, arrays, came, along[0], every)
    device = next(iter(inputs.values())).device
    return {name: jax_call.to_torch(array, device) for name, array in made.items()}


def _ways(function: Function, names: Sequence[str], given: Sequence[tuple[str, Any]], alone: str) -> Function:
    def ways(x: Any, arrays: Any, came: Any, v: Any, every: Any) -> dict[str, jax.Array]:
        def made(x: Any) -> tuple[jax.Array, ...]:
            filled = {**arrays, **x}
            return jax_call.outputs(function, names, [filled[name] for name in names], dict(given))

        def weighed(x: Any) -> jax.Array:
            return _product(came, made(x))

        def gradient(x: Any) -> Any:
            return jax.tree.map(jax_call.conjugate, jax.grad(weighed)(x))

        def along(f: Function, v: Any) -> Any:
            return jax.jvp(f, (x,), (v,))[1]

        def second(f: Function) -> Any:
            return jax.tree.map(jax_call.conjugate, jax.grad(f)(x))

        pushed = jax.vmap(lambda v: along(made, v))(every)
        turned = jax.vmap(lambda v: along(gradient, v))(every)
        found = {}
        for number in range(DIRECTIONS):
            found |= {f"{output_name(place)} along {number}": array[number] for place, array in enumerate(pushed)}
            found |= {f"d {n} along {number}, forward over reverse": array[number] for n, array in turned.items()}
        reverse = second(lambda x: _product(gradient(x), v))
        found |= {f"d {name} along 0, reverse over reverse": array for name, array in reverse.items()}
        forward = second(lambda x: jax.jvp(weighed, (x,), (v,))[1])
        found |= {f"d {name} along 0, reverse over forward": array for name, array in forward.items()}

        def by_itself(one: jax.Array) -> jax.Array:
            own = jax.grad(lambda one: weighed({**x, alone: one}))(one)
            return _product([jax_call.conjugate(own)], [v[alone]])

        found[f"d {alone} along itself"] = jax_call.conjugate(jax.grad(by_itself)(x[alone]))
        return found

    jitted: Function = jax.jit(ways)
    return jitted


def _product(a: Any, b: Any) -> jax.Array:
    """The real part of the inner product."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum((jnp.sum((jnp.conj(x) * y).real.astype(jnp.float32)) for x, y in pairs), jnp.zeros(()))
