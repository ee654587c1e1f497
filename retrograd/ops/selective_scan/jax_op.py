"""selective_scan for JAX: the public functions."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Array as JaxArray
from jaxtyping import Complex, Float, Int32

from retrograd.core.jax.arguments import arrays_of, params_of
from retrograd.core.jax.op import bind

from .op import OP
from .spec import UPDATE, check_update
from .update import update

_call = bind(OP)

Parameter = Float[JaxArray, "D N"] | Complex[JaxArray, "D N"]
Matrix = (
    Float[JaxArray, "B T N"]
    | Complex[JaxArray, "B T N"]
    | Float[JaxArray, "B T G N"]
    | Complex[JaxArray, "B T G N"]
    | Parameter
)
StepMatrix = Float[JaxArray, "B N"] | Complex[JaxArray, "B N"] | Float[JaxArray, "B G N"] | Complex[JaxArray, "B G N"]
States = Float[JaxArray, "S D N"] | Complex[JaxArray, "S D N"]


@overload
def selective_scan(
    x: Float[JaxArray, "B T D"],
    dt: Float[JaxArray, "B T D"],
    A: Parameter,
    B: Matrix,
    C: Matrix,
    *,
    D: Float[JaxArray, " D"] | None = ...,
    z: Float[JaxArray, "B T D"] | None = ...,
    dt_bias: Float[JaxArray, " D"] | None = ...,
    dt_softplus: bool = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[JaxArray, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Float[JaxArray, "B T D"]: ...


@overload
def selective_scan(
    x: Float[JaxArray, "B T D"],
    dt: Float[JaxArray, "B T D"],
    A: Parameter,
    B: Matrix,
    C: Matrix,
    *,
    D: Float[JaxArray, " D"] | None = ...,
    z: Float[JaxArray, "B T D"] | None = ...,
    dt_bias: Float[JaxArray, " D"] | None = ...,
    dt_softplus: bool = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[JaxArray, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Float[JaxArray, "B T D"], States]: ...


def selective_scan(
    x: Float[JaxArray, "B T D"],
    dt: Float[JaxArray, "B T D"],
    A: Parameter,
    B: Matrix,
    C: Matrix,
    *,
    D: Float[JaxArray, " D"] | None = None,
    z: Float[JaxArray, "B T D"] | None = None,
    dt_bias: Float[JaxArray, " D"] | None = None,
    dt_softplus: bool = False,
    initial_state: States | None = None,
    cu_seqlens: Int32[JaxArray, " S+1"] | None = None,
    return_final_state: bool = False,
) -> JaxArray | tuple[JaxArray, JaxArray]:
    """Mamba-1's selective state space; the same call as `retrograd.selective_scan`.

    Shapes, options, results and errors are documented there. On an NVIDIA GPU it launches the same kernels as the
    PyTorch function; on a CPU or TPU it is plain JAX. What the backward pass keeps beside its inputs is named
    `selective_scan_states` for `jax.checkpoint` policies. Gradients of complex arrays follow JAX's convention.

    It has derivatives of every order, in reverse and in forward mode (`jax.jvp`, `jacfwd`, `jax.hessian`). First
    gradients in reverse mode come from the kernels; all others from plain JAX, which is slower and takes more memory.

    The numbers of `cu_seqlens` must not fall or pass T: an array on a CPU that is not traced is looked at. Of one that
    is traced, as under `jax.jit`, or lies on a GPU, numbers that fall or pass T give results that mean nothing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import selective_scan
        >>> x, dt, B = jnp.ones((2, 100, 64)), jnp.ones((2, 100, 64)), jnp.ones((2, 100, 16))
        >>> dx = jax.grad(lambda x: selective_scan(x, dt, -jnp.ones((64, 16)), B, B).sum())(x)
        >>> dx.shape
        (2, 100, 64)
    """
    y, final_state = _call(
        (x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens),
        (dt_softplus, return_final_state),
    )
    return (y, final_state) if return_final_state else y


def selective_state_update(
    state: States,
    x: Float[JaxArray, "B D"],
    dt: Float[JaxArray, "B D"],
    A: Parameter,
    B: StepMatrix,
    C: StepMatrix,
    *,
    D: Float[JaxArray, " D"] | None = None,
    z: Float[JaxArray, "B D"] | None = None,
    dt_bias: Float[JaxArray, " D"] | None = None,
    dt_softplus: bool = False,
) -> tuple[JaxArray, JaxArray]:
    """One step of `selective_scan`, for generation: (y, the new state); as `retrograd.selective_state_update`.

    Its bits are those that the step has in a longer sequence; without a kernel, as far as XLA compiles both alike.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import selective_state_update
        >>> x, B = jnp.ones((2, 64)), jnp.ones((2, 16))
        >>> y, state = selective_state_update(jnp.zeros((2, 64, 16)), x, x, -jnp.ones((64, 16)), B, B)
        >>> y.shape, state.shape
        ((2, 64), (2, 64, 16))
    """
    arguments = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arrays = arrays_of(UPDATE, arguments, required=6)
    check_update(params_of(arrays), dt_softplus)
    return update(_call, arrays, dt_softplus)
