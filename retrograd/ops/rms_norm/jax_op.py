"""rms_norm for JAX: the public function."""

from __future__ import annotations

from typing import Any, Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Float

from retrograd.core.errors import bad_value
from retrograd.core.jax_op import bind

from .op import OP

_call = bind(OP)


@overload
def rms_norm(
    x: Float[Array, "*batch N"],
    weight: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    *,
    bias: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    residual: Float[Array, "*batch N"] | None = ...,
    gate: Float[Array, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[False] = ...,
    out_dtype: Any = ...,
) -> Float[Array, "*batch N"]: ...


@overload
def rms_norm(
    x: Float[Array, "*batch N"],
    weight: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    *,
    bias: Float[Array, " N"] | Float[Array, "H N"] | None = ...,
    residual: Float[Array, "*batch N"] | None = ...,
    gate: Float[Array, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[True],
    out_dtype: Any = ...,
) -> tuple[Float[Array, "*batch N"], Float[Array, "*batch N"]]: ...


def rms_norm(
    x: Float[Array, "*batch N"],
    weight: Float[Array, " N"] | Float[Array, "H N"] | None = None,
    *,
    bias: Float[Array, " N"] | Float[Array, "H N"] | None = None,
    residual: Float[Array, "*batch N"] | None = None,
    gate: Float[Array, "*batch N"] | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    prenorm: bool = False,
    out_dtype: Any = None,
) -> Array | tuple[Array, Array]:
    """Root-mean-square normalisation of the last dimension; the same call as `retrograd.rms_norm`.

    Shapes, options, results and errors are documented there; `out_dtype` is anything `jax.numpy.dtype` takes. On an
    NVIDIA GPU it launches the same kernels as the PyTorch function; on a CPU or TPU it is plain JAX. What the backward
    pass keeps beside its inputs is named `rms_norm_sum` and `rms_norm_rstd` for `jax.checkpoint` policies.

    It has derivatives of every order, in reverse and in forward mode (`jax.jvp`, `jacfwd`, `jax.hessian`). First
    gradients in reverse mode come from the kernels; all others from plain JAX, which is slower and takes more memory.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import rms_norm
        >>> x = jnp.ones((2, 16, 64))
        >>> dx = jax.grad(lambda x: rms_norm(x, jnp.ones(64)).sum())(x)
        >>> dx.shape
        (2, 16, 64)
    """
    try:
        out_name = None if out_dtype is None else str(jnp.dtype(out_dtype))
    except TypeError:
        raise bad_value(OP.name, "out_dtype", out_dtype, "a dtype of jax.numpy") from None
    options = (eps, weight_offset, group_size, norm_before_gate, prenorm, out_name)
    y, s = _call((x, weight, bias, residual, gate), options)
    if not prenorm:
        return y
    return y, jnp.asarray(x) if residual is None else s
