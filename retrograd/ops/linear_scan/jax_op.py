"""linear_scan for JAX: the public function."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Array, Complex, Float, Int32

from retrograd.core.jax_op import bind

from .op import OP

_call = bind(OP)

Decays = Float[Array, "#B T #D"] | Complex[Array, "#B T #D"]
Inputs = Float[Array, "B T D"] | Complex[Array, "B T D"]
States = Float[Array, "S D"] | Complex[Array, "S D"]


@overload
def linear_scan(
    a: Decays,
    b: Inputs,
    *,
    initial_state: States | None = ...,
    reverse: bool = ...,
    cu_seqlens: Int32[Array, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Inputs: ...


@overload
def linear_scan(
    a: Decays,
    b: Inputs,
    *,
    initial_state: States | None = ...,
    reverse: bool = ...,
    cu_seqlens: Int32[Array, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Inputs, States]: ...


def linear_scan(
    a: Decays,
    b: Inputs,
    *,
    initial_state: States | None = None,
    reverse: bool = False,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    return_final_state: bool = False,
) -> Array | tuple[Array, Array]:
    """Linear recurrence along time, each channel by itself; the same call as `retrograd.linear_scan`.

    Shapes, options, results and errors are documented there. On an NVIDIA GPU it launches the same kernels as the
    PyTorch function; on a CPU or TPU it is plain JAX.

    It has derivatives of every order, in reverse and in forward mode (`jax.jvp`, `jacfwd`, `jax.hessian`). First
    gradients in reverse mode come from the kernels; all others from plain JAX, which is slower and takes more memory.

    The numbers of `cu_seqlens` must not fall or pass T: an array on a CPU that is not traced is looked at. Of one that
    is traced, as under `jax.jit`, or lies on a GPU, numbers that fall or pass T give results that mean nothing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import linear_scan
        >>> a, b = jnp.full((2, 100, 64), 0.9), jnp.ones((2, 100, 64))
        >>> da = jax.grad(lambda a: linear_scan(a, b).sum())(a)
        >>> da.shape
        (2, 100, 64)
    """
    h, final_state = _call((a, b, initial_state, cu_seqlens), (reverse, return_final_state))
    return (h, final_state) if return_final_state else h
