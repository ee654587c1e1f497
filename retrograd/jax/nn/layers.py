"""Linear layers and norms on a dict of parameters, and the dtypes of their weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from retrograd.core.xp import aligned
from retrograd.jax import rms_norm

from .parameters import Params

EPS = 1e-5  # of `retrograd.nn.RMSNorm`


def linear(params: Params, name: str, x: Array) -> Array:
    """x times the weight transposed, plus the bias where there is one, in the dtype of x."""
    y = x @ params[f"{name}.weight"].astype(x.dtype).T
    bias = params.get(f"{name}.bias")
    return y if bias is None else y + aligned(bias.astype(x.dtype), y)


def norm(weight: Array, x: Array, residual: Array | None = None) -> tuple[Array, Array]:
    """The norm of x + residual in the dtype of x, and that sum in the dtype of residual."""
    return rms_norm(x, beside(weight, x), residual=residual, eps=EPS, prenorm=True)


def beside(weight: Array, x: Array) -> Array:
    """A weight in the dtype in which a fused op takes it: its own, or that of x if x has more bits."""
    return weight.astype(wider(weight.dtype, x.dtype))


def at_least_float32(array: Array) -> Array:
    """The array in at least float32."""
    return array.astype(wider(array.dtype, jnp.float32))


def wider(x: DTypeLike, y: DTypeLike) -> jnp.dtype:
    """The dtype that has the numbers of both, also where JAX is told to promote no dtypes by itself."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(x, y)
