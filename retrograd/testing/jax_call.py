"""Calls JAX functions on PyTorch tensors, so that both frameworks are compared with the same reference.

JAX's gradient of a complex array is the conjugate of PyTorch's; `forward_and_backward` takes and returns PyTorch's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from .draw import Arrays, Function, differentiable, output_name

BFLOAT16 = jnp.dtype("bfloat16")
# XLA's defaults of the options that tests change by XLA_FLAGS; not every jaxlib knows all of them.
DEFAULTS = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}


def to_jax(tensor: Tensor) -> jax.Array:
    """The same bits as a JAX array, on the same kind of device."""
    device = jax.devices("gpu" if tensor.is_cuda else "cpu")[0]
    dense = tensor.detach().cpu().contiguous()
    if dense.dtype == torch.bfloat16:  # numpy has no bfloat16 of its own
        return jax.device_put(dense.view(torch.int16).numpy().view(BFLOAT16), device)
    return jax.device_put(dense.numpy(), device)


def to_torch(array: jax.Array, device: torch.device) -> Tensor:
    """The same bits as a PyTorch tensor."""
    host = np.array(array)
    if host.dtype == BFLOAT16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(host).to(device)


def call(
    function: Function, inputs: Mapping[str, Tensor], options: Mapping[str, Any], gradients: Sequence[Tensor]
) -> Arrays:
    """Forward and backward, jitted; as `draw.call`, for a JAX function. Options that are dtypes are passed by name."""
    run = jitted(function, tuple(inputs), tuple(options.items()))
    results, found = run([to_jax(t) for t in inputs.values()], [to_jax(g) for g in gradients])
    return named(results, wanted(inputs), found, next(iter(inputs.values())).device)


def forward(function: Function, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs alone, jitted, with all inputs passed by name. Compiled with XLA's default optimisation."""
    run = optimised(function, tuple(inputs), tuple(options.items()))
    device = next(iter(inputs.values())).device
    return tuple(to_torch(array, device) for array in run([to_jax(t) for t in inputs.values()]))


@lru_cache(maxsize=256)
def optimised(function: Function, names: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> Function:
    """The function under jit, compiled with XLA's default optimisation even if `XLA_FLAGS` lowers it for tests."""

    def run(arrays: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        results = function(**dict(zip(names, arrays, strict=True)), **dict(options))
        return results if isinstance(results, tuple) else (results,)

    flags = os.environ.get("XLA_FLAGS", "")
    return jax.jit(run, compiler_options={name: value for name, value in DEFAULTS.items() if name in flags})


def wanted(inputs: Mapping[str, Tensor]) -> list[str]:
    """The inputs that have a gradient."""
    return [name for name, tensor in inputs.items() if differentiable(tensor)]


@lru_cache(maxsize=256)
def jitted(function: Function, names: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> Function:
    """Forward and backward under jit, cached so that all draws share one compilation."""
    return jax.jit(forward_and_backward(function, names, dict(options)))


def forward_and_backward(function: Function, names: Sequence[str], options: Mapping[str, Any]) -> Function:
    """A function from (inputs, gradients) to (outputs, gradients of the inputs that are not integers)."""

    def both(arrays: Sequence[jax.Array], gradients: Sequence[jax.Array]) -> tuple[Any, Any]:
        places = [i for i, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.inexact)]

        def of_numbers(*numbers: jax.Array) -> tuple[jax.Array, ...]:
            filled = list(arrays)
            for place, array in zip(places, numbers, strict=True):
                filled[place] = array
            return outputs(function, names, filled, options)

        results, pull_back = jax.vjp(of_numbers, *(arrays[place] for place in places))
        return results, tuple(conjugate(g) for g in pull_back(tuple(conjugate(g) for g in gradients)))

    return both


def conjugate(gradient: jax.Array) -> jax.Array:
    """Convert a gradient from PyTorch's convention to JAX's, or back."""
    return jnp.conj(gradient) if jnp.iscomplexobj(gradient) else gradient


def named(
    arrays: Sequence[jax.Array], names: Iterable[str], found: Sequence[jax.Array], device: torch.device
) -> Arrays:
    """Outputs, and gradients of the named inputs, as PyTorch tensors under the names that `draw.call` uses."""
    results = {output_name(i): to_torch(array, device) for i, array in enumerate(arrays)}
    return results | {f"d {name}": to_torch(array, device) for name, array in zip(names, found, strict=True)}


def outputs(
    function: Function, names: Sequence[str], arrays: Sequence[jax.Array], options: Mapping[str, Any]
) -> tuple[jax.Array, ...]:
    """Call the function with the first input positional; returns a tuple also for one output."""
    first, *rest = arrays
    results = function(first, **dict(zip(names[1:], rest, strict=True)), **options)
    return results if isinstance(results, tuple) else (results,)
