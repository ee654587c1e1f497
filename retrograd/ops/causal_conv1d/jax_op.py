"""causal_conv1d for JAX: the public functions."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Array, Float, Int32

from retrograd.core.jax.arguments import arrays_of
from retrograd.core.jax.op import bind

from .op import OP
from .update import UPDATE, update

_call = bind(OP)


@overload
def causal_conv1d(
    x: Float[Array, "B T D"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = ...,
    *,
    activation: Literal["silu"] | None = ...,
    initial_state: Float[Array, "S D W-1"] | None = ...,
    cu_seqlens: Int32[Array, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Float[Array, "B T D"]: ...


@overload
def causal_conv1d(
    x: Float[Array, "B T D"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = ...,
    *,
    activation: Literal["silu"] | None = ...,
    initial_state: Float[Array, "S D W-1"] | None = ...,
    cu_seqlens: Int32[Array, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Float[Array, "B T D"], Float[Array, "S D W-1"]]: ...


def causal_conv1d(
    x: Float[Array, "B T D"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
    initial_state: Float[Array, "S D W-1"] | None = None,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    return_final_state: bool = False,
) -> Array | tuple[Array, Array]:
    """Depthwise causal convolution along time; the same call as `retrograd.causal_conv1d`.

    Shapes, options, results and errors are documented there. On an NVIDIA GPU it launches the same kernels as the
    PyTorch function; on a CPU or TPU it is plain JAX.

    It has derivatives of every order, in reverse and in forward mode (`jax.jvp`, `jacfwd`, `jax.hessian`). First
    gradients in reverse mode come from the kernels; all others from plain JAX, which is slower and takes more memory.

    The numbers of `cu_seqlens` must not fall or pass T: an array on a CPU that is not traced is looked at. Of one that
    is traced, as under `jax.jit`, or lies on a GPU, numbers that fall or pass T give results that mean nothing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import causal_conv1d
        >>> x, weight = jnp.ones((2, 16, 64)), jnp.ones((64, 4))
        >>> dx = jax.grad(lambda x: causal_conv1d(x, weight, activation="silu").sum())(x)
        >>> dx.shape
        (2, 16, 64)
    """
    y, final_state = _call((x, weight, bias, initial_state, cu_seqlens), (activation, return_final_state))
    return (y, final_state) if return_final_state else y


def causal_conv1d_update(
    x: Float[Array, "B D"] | Float[Array, "B T D"],
    state: Float[Array, "B D W-1"],
    weight: Float[Array, "D W"],
    bias: Float[Array, " D"] | None = None,
    *,
    activation: Literal["silu"] | None = None,
) -> tuple[Array, Float[Array, "B D W-1"]]:
    """One step of generation, or a few, from a state; the same call as `retrograd.causal_conv1d_update`.

    Its bits are those that the steps have in a longer sequence; without a kernel, as far as XLA compiles both alike.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import causal_conv1d_update
        >>> y, state = causal_conv1d_update(jnp.ones((2, 64)), jnp.zeros((2, 64, 3)), jnp.ones((64, 4)))
        >>> y.shape, state.shape
        ((2, 64), (2, 64, 3))
    """
    arrays = arrays_of(UPDATE, {"x": x, "state": state, "weight": weight, "bias": bias}, required=3)
    return update(causal_conv1d, **arrays, activation=activation)
