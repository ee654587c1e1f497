"""Random inputs for a case, and the outputs and gradients of a call, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from retrograd.core.torch.launch import DTYPES
from retrograd.opinfo import cases
from retrograd.opinfo.cases import Case

Arrays = dict[str, Tensor]
Function = Callable[..., Any]


def draw(case: Case, device: str, seed: int) -> Arrays:
    """The inputs of a case, drawn on the device from the seed."""
    generator = torch.Generator(device).manual_seed(2 * seed)
    return {name: draw_one(tensor, generator) for name, tensor in case.inputs.items()}


def draw_one(tensor: cases.Tensor, generator: torch.Generator) -> Tensor:
    """One input, drawn from its distribution (`law`)."""
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
    """Standard normal numbers in a dtype; both parts of complex numbers are standard normal."""
    g = normal(shape, generator)
    return (torch.complex(g, normal(shape, generator)) if dtype.is_complex else g).to(dtype)


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Standard normal numbers in fp32."""
    return torch.randn(tuple(shape), generator=generator, device=generator.device)


def options(case: Case, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """The options of a case for PyTorch; names of dtypes are replaced by the dtype, or by `dtype` if it is passed."""
    return {
        name: (dtype or DTYPES[value]) if isinstance(value, str) and value in DTYPES else value
        for name, value in case.options.items()
    }


def outputs(function: Function, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Call the function with the first input positional; returns a tuple also for one output."""
    first, *rest = inputs
    results = function(inputs[first], **{name: inputs[name] for name in rest}, **options)
    return results if isinstance(results, tuple) else (results,)


def call(
    function: Function,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, Any],
    gradients: Sequence[Tensor],
) -> Arrays:
    """Forward and backward: every output ("y", "output 1", ...) and every gradient ("d x", ...), by name.

    Args:
        function: an op or its reference.
        inputs: argument -> tensor; strides are kept, and gradients are computed for all but integer tensors.
        options: the options.
        gradients: the gradient of each output.
    """
    arguments = leaves(inputs)
    results = outputs(function, arguments, options)
    named = {output_name(i): tensor.detach() for i, tensor in enumerate(results)}
    return named | gradients_of(results, arguments, gradients)


def leaves(inputs: Mapping[str, Tensor]) -> Arrays:
    """The inputs, detached; `requires_grad` is set on all but integer tensors."""
    return {name: tensor.detach().requires_grad_(differentiable(tensor)) for name, tensor in inputs.items()}


def differentiable(tensor: Tensor) -> bool:
    """Whether a tensor can have a gradient; integers cannot."""
    return tensor.is_floating_point() or tensor.is_complex()


def gradients_of(results: Sequence[Tensor], arguments: Mapping[str, Tensor], gradients: Sequence[Tensor]) -> Arrays:
    """The gradient of every leaf ("d x", ...); zeros for a leaf on which no output depends, as in an empty case."""
    wanted = {name: tensor for name, tensor in arguments.items() if tensor.requires_grad}
    pairs = [(tensor, gradient) for tensor, gradient in zip(results, gradients, strict=True) if tensor.requires_grad]
    if not pairs:
        return {f"d {name}": torch.zeros_like(tensor) for name, tensor in wanted.items()}
    differentiated, incoming = zip(*pairs, strict=True)
    found = torch.autograd.grad(
        differentiated, list(wanted.values()), incoming, allow_unused=True, materialize_grads=True
    )
    return {f"d {name}": tensor for name, tensor in zip(wanted, found, strict=True)}


def upcast(tensor: Tensor) -> Tensor:
    """The tensor in float64 or complex128; integers are returned unchanged."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def output_name(place: int) -> str:
    """The name of an output in the contract."""
    return f"output {place}" if place else "y"


def draw_gradients(reference: Function, case: Case, inputs: Mapping[str, Tensor], seed: int) -> list[Tensor]:
    """A gradient for each output of a case, of its shape and dtype; the random stream is not that of the inputs."""
    with torch.no_grad():
        results = outputs(reference, inputs, options(case))
    generator = torch.Generator(results[0].device).manual_seed(2 * seed + 1)  # the seed has 32 bits on a CPU
    return [normal_as(tensor.shape, tensor.dtype, generator) for tensor in results]


def plain_and_exact(
    reference: Function,
    case: Case,
    inputs: Mapping[str, Tensor],
    gradients: Sequence[Tensor],
    plain: Function | None = None,
) -> tuple[Arrays, Arrays]:
    """The plain computation (by default the reference) in the dtypes of the case, and the reference in float64."""
    dense = {name: tensor.contiguous() for name, tensor in inputs.items()}
    incoming = [gradient.contiguous() for gradient in gradients]
    rounded = call(plain or reference, dense, options(case), incoming)
    exact = {name: upcast(tensor) for name, tensor in dense.items()}
    return rounded, call(reference, exact, options(case, torch.float64), [upcast(g) for g in incoming])
