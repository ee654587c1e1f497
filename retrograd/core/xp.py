"""The few array functions that portable paths are written in, for PyTorch and JAX alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Namespace:
    """Array functions of one framework. Reductions are over the last axis and keep it, unless they say otherwise."""

    astype: Callable[[Any, str], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    dense: Callable[[Any], Any]  # in row-major order in memory, as kernels write and as shape inference promises
    mean: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    silu: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    sum_to: Callable[[Any, tuple[int, ...]], Any]  # sums leading axes away, down to the given trailing shape


def torch_namespace() -> Namespace:
    """PyTorch's functions."""
    import torch

    return Namespace(
        astype=lambda x, dtype: x.to(getattr(torch, dtype)),
        reshape=lambda x, shape: x.reshape(shape),
        # An empty tensor counts as contiguous whatever its strides are.
        dense=lambda x: x.contiguous() if x.numel() else x.new_empty(x.shape),
        mean=_torch_mean,
        sqrt=torch.sqrt,
        silu=lambda x: x * _torch_sigmoid(x),
        sigmoid=_torch_sigmoid,
        sum_to=lambda x, shape: x.reshape(_rows(x.shape, shape), *shape).sum(0),
    )


def _torch_sigmoid(x: Any) -> Any:
    # On a CPU, torch.sigmoid computes what is left over after whole vectors in another way, so that its last bit
    # depends on where in the array an element lies; exp does not.
    return 1 / (1 + (-x).exp())


def _torch_mean(x: Any) -> Any:
    if x.numel() and x.numel() == x.shape[-1]:
        # A CPU sums one long row by itself in parts, as many as it has threads; of two rows, each goes to one thread.
        return x.reshape(1, -1).expand(2, -1).mean(-1)[0].reshape(*x.shape[:-1], 1)
    return x.mean(-1, keepdim=True)


def jax_namespace() -> Namespace:
    """JAX's functions."""
    import jax
    import jax.numpy as jnp

    return Namespace(
        astype=lambda x, dtype: x.astype(dtype),
        reshape=jnp.reshape,
        dense=lambda x: x,
        mean=lambda x: jnp.mean(x, axis=-1, keepdims=True),
        sqrt=jnp.sqrt,
        silu=jax.nn.silu,
        sigmoid=jax.nn.sigmoid,
        sum_to=lambda x, shape: x.reshape(_rows(x.shape, shape), *shape).sum(0),
    )


def _rows(shape: tuple[int, ...], trailing: tuple[int, ...]) -> int:
    return prod(shape[: len(shape) - len(trailing)])
