"""ssd for JAX: the public functions."""

from __future__ import annotations

from typing import Literal, overload

from jaxtyping import Array as JaxArray
from jaxtyping import Float, Int32

from retrograd.core.jax.arguments import arrays_of, params_of
from retrograd.core.jax.op import bind
from retrograd.core.xp import jax_namespace

from . import generation, portable
from .generation import SsdWindow
from .op import OP
from .spec import NOT_NEGATIVE, PREFILL, ROWS, STEP, UPDATE, as_tuple, check_prefill, check_step, check_update

_call = bind(OP)

Skip = Float[JaxArray, " H"] | Float[JaxArray, "H P"]
States = Float[JaxArray, "S H P N"]
Limit = tuple[float, float]


@overload
def ssd(
    x: Float[JaxArray, "B T H P"],
    dt: Float[JaxArray, "B T H"],
    A: Float[JaxArray, " H"],
    B: Float[JaxArray, "B T G N"],
    C: Float[JaxArray, "B T G N"],
    *,
    D: Skip | None = ...,
    z: Float[JaxArray, "B T H P"] | None = ...,
    dt_bias: Float[JaxArray, " H"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: Limit = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[JaxArray, " S+1"] | None = ...,
    return_final_state: Literal[False] = ...,
) -> Float[JaxArray, "B T H P"]: ...


@overload
def ssd(
    x: Float[JaxArray, "B T H P"],
    dt: Float[JaxArray, "B T H"],
    A: Float[JaxArray, " H"],
    B: Float[JaxArray, "B T G N"],
    C: Float[JaxArray, "B T G N"],
    *,
    D: Skip | None = ...,
    z: Float[JaxArray, "B T H P"] | None = ...,
    dt_bias: Float[JaxArray, " H"] | None = ...,
    dt_softplus: bool = ...,
    dt_limit: Limit = ...,
    initial_state: States | None = ...,
    cu_seqlens: Int32[JaxArray, " S+1"] | None = ...,
    return_final_state: Literal[True],
) -> tuple[Float[JaxArray, "B T H P"], States]: ...


def ssd(
    x: Float[JaxArray, "B T H P"],
    dt: Float[JaxArray, "B T H"],
    A: Float[JaxArray, " H"],
    B: Float[JaxArray, "B T G N"],
    C: Float[JaxArray, "B T G N"],
    *,
    D: Skip | None = None,
    z: Float[JaxArray, "B T H P"] | None = None,
    dt_bias: Float[JaxArray, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
    initial_state: States | None = None,
    cu_seqlens: Int32[JaxArray, " S+1"] | None = None,
    return_final_state: bool = False,
) -> JaxArray | tuple[JaxArray, JaxArray]:
    """Mamba-2's state space dual; the same call as `retrograd.ssd`.

    Shapes, options, results and errors are documented there. On an NVIDIA GPU it launches the same kernels as the
    PyTorch function; on a CPU or TPU it is plain JAX. What the backward pass keeps beside its inputs is named
    `ssd_states` for `jax.checkpoint` policies.

    It has derivatives of every order, in reverse and in forward mode (`jax.jvp`, `jacfwd`, `jax.hessian`). First
    gradients in reverse mode come from the kernels; all others from plain JAX, which is slower and takes more memory.

    The numbers of `cu_seqlens` must not fall or pass T: an array on a CPU that is not traced is looked at. Of one that
    is traced, as under `jax.jit`, or lies on a GPU, numbers that fall or pass T give results that mean nothing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import ssd
        >>> x, dt, B = jnp.ones((2, 100, 8, 64)), jnp.ones((2, 100, 8)), jnp.ones((2, 100, 1, 128))
        >>> dx = jax.grad(lambda x: ssd(x, dt, -jnp.ones(8), B, B).sum())(x)
        >>> dx.shape
        (2, 100, 8, 64)
    """
    y, final_state = _call(
        (x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens),
        (dt_softplus, as_tuple(dt_limit), return_final_state),
    )
    return (y, final_state) if return_final_state else y


def ssd_update(
    state: States,
    x: Float[JaxArray, "B H P"],
    dt: Float[JaxArray, "B H"],
    A: Float[JaxArray, " H"],
    B: Float[JaxArray, "B G N"],
    C: Float[JaxArray, "B G N"],
    *,
    D: Skip | None = None,
    z: Float[JaxArray, "B H P"] | None = None,
    dt_bias: Float[JaxArray, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
) -> tuple[JaxArray, JaxArray]:
    """One step of `ssd`, for generation: (y, the new state); as `retrograd.ssd_update`.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_update
        >>> x, dt, B = jnp.ones((2, 8, 64)), jnp.ones((2, 8)), jnp.ones((2, 1, 128))
        >>> y, state = ssd_update(jnp.zeros((2, 8, 64, 128)), x, dt, -jnp.ones(8), B, B)
        >>> y.shape, state.shape
        ((2, 8, 64), (2, 8, 64, 128))
    """
    arguments = {"state": state, "x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arrays = arrays_of(UPDATE, arguments, required=6)
    dt_limit = as_tuple(dt_limit)
    check_update(params_of(arrays), dt_softplus, dt_limit)
    y, new = portable.update(jax_namespace(), **arrays, dt_softplus=dt_softplus, dt_limit=dt_limit)
    return y.astype(arrays["x"].dtype), new


def ssd_prefill(
    x: Float[JaxArray, "B T H P"],
    dt: Float[JaxArray, "B T H"],
    A: Float[JaxArray, " H"],
    B: Float[JaxArray, "B T G N"],
    C: Float[JaxArray, "B T G N"],
    *,
    D: Skip | None = None,
    z: Float[JaxArray, "B T H P"] | None = None,
    dt_bias: Float[JaxArray, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
    initial_state: States | None = None,
) -> tuple[Float[JaxArray, "B T H P"], SsdWindow]:
    """`ssd` on the beginning of a text, and the window from which `ssd_step` goes on; as `retrograd.ssd_prefill`."""
    arrays = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arrays["initial_state"] = initial_state
    arrays = arrays_of(PREFILL, arrays, required=5)
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    check_prefill(params_of(arrays), **options)
    return generation.prefill(jax_namespace(), ssd, arrays, options)


def ssd_step(
    window: SsdWindow,
    x: Float[JaxArray, "B H P"],
    dt: Float[JaxArray, "B H"],
    A: Float[JaxArray, " H"],
    B: Float[JaxArray, "B G N"],
    C: Float[JaxArray, "B G N"],
    *,
    D: Skip | None = None,
    z: Float[JaxArray, "B H P"] | None = None,
    dt_bias: Float[JaxArray, " H"] | None = None,
    dt_softplus: bool = False,
    dt_limit: Limit = NOT_NEGATIVE,
) -> tuple[Float[JaxArray, "B H P"], SsdWindow]:
    """One step of generation with the bits of training: (y, the window behind it); as `retrograd.ssd_step`.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_prefill, ssd_step
        >>> x, dt, A, B = jnp.ones((1, 4, 8, 64)), jnp.ones((1, 4, 8)), -jnp.ones(8), jnp.ones((1, 4, 1, 128))
        >>> y, window = ssd_prefill(x, dt, A, B, B)
        >>> y, window = ssd_step(window, x[:, 0], dt[:, 0], A, B[:, 0], B[:, 0])
        >>> int(window.steps[0])
        5
    """
    kept = arrays_of(STEP, generation.arrays_of_window(window), required=6)
    arrays = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arrays = arrays_of(STEP, arrays, required=5)
    check_step(params_of(arrays), params_of(kept), dt_softplus, as_tuple(dt_limit))
    window = SsdWindow(*kept.values())
    rows = {name: arrays[name] for name in ROWS}
    shared = {"A": A, "D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    return generation.step(jax_namespace(), ssd, window, rows, shared, z)
