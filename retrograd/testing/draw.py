"""Fresh inputs for a case, and what comes out of a call: its outputs and every gradient, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.torch_launch import DTYPES

Arrays = dict[str, Tensor]
Function = Callable[..., Any]


def draw(case: Case, device: str, seed: int) -> Arrays:
    """The inputs of a case, drawn on the device from the seed."""
    generator = torch.Generator(device).manual_seed(2 * seed)
    return {
        name: (normal(tensor.shape, generator) * tensor.std + tensor.mean).to(DTYPES[tensor.dtype])
        for name, tensor in case.inputs.items()
    }


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
        inputs: argument -> tensor; strides are kept as they are, and every one is differentiated.
        options: the other arguments.
        gradients: one for each output.
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    made = outputs(function, leaves, options)
    found = torch.autograd.grad(made, list(leaves.values()), list(gradients))
    named = {output_name(i): tensor.detach() for i, tensor in enumerate(made)}
    return named | {f"d {name}": tensor for name, tensor in zip(leaves, found, strict=True)}


def output_name(place: int) -> str:
    """What the contract calls an output."""
    return f"output {place}" if place else "y"


def draw_gradients(reference: Function, case: Case, inputs: Mapping[str, Tensor], seed: int) -> list[Tensor]:
    """A gradient for each output of a case, of its shape and dtype; another stream than that of the inputs."""
    with torch.no_grad():
        made = outputs(reference, inputs, options(case))
    generator = torch.Generator(made[0].device).manual_seed(2 * seed + 1)  # the seed has 32 bits on a CPU
    return [normal(tensor.shape, generator).to(tensor.dtype) for tensor in made]


def plain_and_exact(
    reference: Function, case: Case, inputs: Mapping[str, Tensor], gradients: Sequence[Tensor]
) -> tuple[Arrays, Arrays]:
    """The reference in the dtypes of the case, and in float64, on the same inputs and gradients."""
    given, came_in = {name: tensor.contiguous() for name, tensor in inputs.items()}, [g.contiguous() for g in gradients]
    plain = call(reference, given, options(case), came_in)
    upcast = {name: tensor.double() for name, tensor in given.items()}
    return plain, call(reference, upcast, options(case, torch.float64), [g.double() for g in came_in])
