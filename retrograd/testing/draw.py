"""Fresh inputs for a case, and what comes out of a call: its outputs and every gradient, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from retrograd.core import cases
from retrograd.core.cases import Case
from retrograd.core.torch.launch import DTYPES

Arrays = dict[str, Tensor]
Function = Callable[..., Any]


def draw(case: Case, device: str, seed: int) -> Arrays:
    """The inputs of a case, drawn on the device from the seed."""
    generator = torch.Generator(device).manual_seed(2 * seed)
    return {name: draw_one(tensor, generator) for name, tensor in case.inputs.items()}


def draw_one(tensor: cases.Tensor, generator: torch.Generator) -> Tensor:
    """One input, by its law."""
    dtype = DTYPES[tensor.dtype]
    if tensor.values is not None:
        return torch.tensor(tensor.values, dtype=dtype, device=generator.device).reshape(tensor.shape)
    g = normal(tensor.shape, generator) * tensor.std + tensor.mean
    if tensor.law == "decay":
        g = g.sigmoid()
    elif tensor.law == "negative":
        g = -g.exp()
    if dtype.is_complex:
        other = normal(tensor.shape, generator)
        if tensor.law == "decay":
            g = torch.polar(g, torch.pi * torch.erf(other * 0.5**0.5))  # a uniform phase
        else:
            g = torch.complex(g, other * tensor.std + tensor.mean if tensor.law == "normal" else other)
    return g.to(dtype)


def normal_as(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Standard normal in a dtype; a complex number in both its parts."""
    g = normal(shape, generator)
    return (torch.complex(g, normal(shape, generator)) if dtype.is_complex else g).to(dtype)


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Standard normal, fp32."""
    return torch.randn(tuple(shape), generator=generator, device=generator.device)


def options(case: Case, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """The options of a case as PyTorch takes them: the name of a dtype becomes the dtype, or the one given."""
    return {
        name: (dtype or DTYPES[value]) if isinstance(value, str) and value in DTYPES else value
        for name, value in case.options.items()
    }


def outputs(function: Function, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Call the function, the first input positional; always a tuple."""
    first, *rest = inputs
    made = function(inputs[first], **{name: inputs[name] for name in rest}, **options)
    return made if isinstance(made, tuple) else (made,)


def call(
    function: Function,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, Any],
    gradients: Sequence[Tensor],
) -> Arrays:
    """Forward and backward: every output ("y", "output 1", ...) and every gradient ("d x", ...), by name.

    Args:
        function: an op or its reference.
        inputs: argument -> tensor; strides are kept as they are, and every one that is not of integers is
            differentiated.
        options: the other arguments.
        gradients: one for each output.
    """
    given = leaves(inputs)
    made = outputs(function, given, options)
    named = {output_name(i): tensor.detach() for i, tensor in enumerate(made)}
    return named | gradients_of(made, given, gradients)


def leaves(inputs: Mapping[str, Tensor]) -> Arrays:
    """The inputs, detached; those that have a gradient require one."""
    return {name: tensor.detach().requires_grad_(differentiable(tensor)) for name, tensor in inputs.items()}


def differentiable(tensor: Tensor) -> bool:
    """Whether it has a gradient: integers have none."""
    return tensor.is_floating_point() or tensor.is_complex()


def gradients_of(made: Sequence[Tensor], given: Mapping[str, Tensor], gradients: Sequence[Tensor]) -> Arrays:
    """The gradient of every leaf ("d x", ...); zeros where the outputs do not depend on one, as in an empty case."""
    wanted = {name: tensor for name, tensor in given.items() if tensor.requires_grad}
    pairs = [(tensor, gradient) for tensor, gradient in zip(made, gradients, strict=True) if tensor.requires_grad]
    if not pairs:
        return {f"d {name}": torch.zeros_like(tensor) for name, tensor in wanted.items()}
    differentiated, came_in = zip(*pairs, strict=True)
    found = torch.autograd.grad(
        differentiated, list(wanted.values()), came_in, allow_unused=True, materialize_grads=True
    )
    return {f"d {name}": tensor for name, tensor in zip(wanted, found, strict=True)}


def upcast(tensor: Tensor) -> Tensor:
    """In float64 or complex128; integers as they are."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def output_name(place: int) -> str:
    """What the contract calls an output."""
    return f"output {place}" if place else "y"


def draw_gradients(reference: Function, case: Case, inputs: Mapping[str, Tensor], seed: int) -> list[Tensor]:
    """A gradient for each output of a case, of its shape and dtype; another stream than that of the inputs."""
    with torch.no_grad():
        made = outputs(reference, inputs, options(case))
    generator = torch.Generator(made[0].device).manual_seed(2 * seed + 1)  # the seed has 32 bits on a CPU
    return [normal_as(tensor.shape, tensor.dtype, generator) for tensor in made]


def plain_and_exact(
    reference: Function,
    case: Case,
    inputs: Mapping[str, Tensor],
    gradients: Sequence[Tensor],
    plain: Function | None = None,
) -> tuple[Arrays, Arrays]:
    """The plain computation in the dtypes of the case, by default the reference's, and the reference in float64."""
    given, came_in = {name: tensor.contiguous() for name, tensor in inputs.items()}, [g.contiguous() for g in gradients]
    rounded = call(plain or reference, given, options(case), came_in)
    exact = {name: upcast(tensor) for name, tensor in given.items()}
    return rounded, call(reference, exact, options(case, torch.float64), [upcast(g) for g in came_in])
