"""A JAX function called on PyTorch tensors, so that one reference judges both frameworks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from .draw import Arrays, Function, output_name


def to_jax(tensor: Tensor) -> jax.Array:
    """The same bits as a JAX array, on the same kind of device."""
    device = jax.devices("gpu" if tensor.is_cuda else "cpu")[0]
    dense = tensor.detach().cpu().contiguous()
    if dense.dtype == torch.bfloat16:  # numpy has no bfloat16 of its own
        return jax.device_put(dense.view(torch.int16).numpy().view(jnp.bfloat16), device)
    return jax.device_put(dense.numpy(), device)


def to_torch(array: jax.Array, device: torch.device) -> Tensor:
    """The same bits as a PyTorch tensor."""
    host = np.array(array)
    if host.dtype == jnp.bfloat16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(host).to(device)


def call(
    function: Function,
    inputs: Mapping[str, Tensor],
    options: Mapping[str, Any],
    gradients: Sequence[Tensor],
    jit: bool = True,
) -> Arrays:
    """Forward and backward; as `draw.call`, for a JAX function. Dtype options are given by name."""
    device = next(iter(inputs.values())).device
    names = list(inputs)

    def forward_and_backward(arrays: list[jax.Array], cotangents: list[jax.Array]) -> tuple[Any, Any]:
        made, pull_back = jax.vjp(lambda *given: outputs(function, names, given, options), *arrays)
        return made, pull_back(tuple(cotangents))

    run = jax.jit(forward_and_backward) if jit else forward_and_backward
    made, found = run([to_jax(t) for t in inputs.values()], [to_jax(g) for g in gradients])
    named = {output_name(i): to_torch(array, device) for i, array in enumerate(made)}
    return named | {f"d {name}": to_torch(array, device) for name, array in zip(names, found, strict=True)}


def outputs(
    function: Function, names: Sequence[str], arrays: Sequence[jax.Array], options: Mapping[str, Any]
) -> tuple[jax.Array, ...]:
    """Call the function, the first input positional; always a tuple."""
    first, *rest = arrays
    made = function(first, **dict(zip(names[1:], rest, strict=True)), **options)
    return made if isinstance(made, tuple) else (made,)
