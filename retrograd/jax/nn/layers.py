"""Linear layers, norms and the gated MLP on a dict of parameters, and the dtypes of their weights."""

from __future__ import annotations

from itertools import accumulate

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from retrograd.core.xp import aligned
from retrograd.jax import linear as exact_linear
from retrograd.jax import rms_norm
from retrograd.models.shapes import mlp_shapes

from .parameters import Params, check, check_features, columns

EPS = 1e-5  # of `retrograd.nn.RMSNorm`


def gated_mlp(
    params: Params, x: Float[Array, "*batch d_model"], *, exact: bool = False
) -> Float[Array, "*batch d_model"]:
    """fc2(h * silu(gate)), where fc1(x) is h and gate, one after the other.

    Args:
        params: `fc1.weight` (2 channels, d_model) and `fc2.weight` (d_model, channels), cast to the dtype of x.
        x: (..., d_model), float32, bfloat16 or float16.
        exact: whether products are `retrograd.jax.linear`'s, with the same bits in any number of rows.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Source: Shazeer, GLU Variants Improve Transformer (2020), equation 6, SwiGLU.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> params = {"fc1.weight": jnp.ones((256, 64)), "fc2.weight": jnp.ones((64, 128))}
        >>> nn.gated_mlp(params, jnp.ones((2, 64))).shape
        (2, 64)
    """
    check_features("gated_mlp", "x", x, columns(params, "fc1.weight"), ("...",))
    check("gated_mlp", params, mlp_shapes(x.shape[-1], columns(params, "fc2.weight") or 1))
    h, gate = jnp.split(linear(params, "fc1", x, exact), 2, axis=-1)
    return linear(params, "fc2", h * jax.nn.silu(gate), exact)


def linear(params: Params, name: str, x: Array, exact: bool) -> Array:
    """x times the weight of this name transposed, plus the bias where there is one, in the dtype of x."""
    return product(x, params[f"{name}.weight"], params.get(f"{name}.bias"), exact=exact)


def product(x: Array, weight: Array, bias: Array | None = None, *, exact: bool) -> Array:
    """The same with a weight and a bias given; exact ones have the same bits in any number of rows."""
    weight = weight.astype(x.dtype)
    if bias is not None:
        bias = bias.astype(x.dtype)
    if exact:
        return exact_linear(x, weight, bias)
    y = x @ weight.T
    return y if bias is None else y + aligned(bias, y)


def norm(weight: Array, x: Array, residual: Array | None = None) -> tuple[Array, Array]:
    """The norm of x + residual in the dtype of x, and that sum in the dtype of residual."""
    return rms_norm(x, beside(weight, x), residual=residual, eps=EPS, prenorm=True)


def taps(params: Params, x: Array) -> tuple[Array, Array | None]:
    """Weight and bias of the convolution over x, as `causal_conv1d` takes them."""
    bias = params.get("conv1d.bias")
    return beside(params["conv1d.weight"], x).squeeze(1), None if bias is None else beside(bias, x)


def split(x: Array, *sizes: int) -> list[Array]:
    """The parts of the last axis that have these sizes, one after the other."""
    return jnp.split(x, list(accumulate(sizes))[:-1], axis=-1)


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
