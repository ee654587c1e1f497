"""The functions for generation in JAX, which `retrograd.jax` exports beside `ssd`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array as JaxArray
from jaxtyping import Float

from retrograd.core.errors import as_tuple, bad_shape
from retrograd.core.jax.arguments import arrays_of, params_of, with_open_sizes
from retrograd.core.jax.op import bind
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.spec import CallSpec, known, required_count

from . import generation, portable
from .generation import SsdWindow
from .op import NOT_NEGATIVE, OP
from .steps import ROWS, Prefill, Step, Update, check

__all__ = ["SsdWindow", "ssd_prefill", "ssd_step", "ssd_update"]

Skip = Float[JaxArray, " H"] | Float[JaxArray, "H P"]
States = Float[JaxArray, "B H P N"]
Limit = tuple[float, float]

_bound = bind(OP)


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
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    arrays = _checked(Update, arguments, options)
    y, new = portable.update(jax_namespace(), **arrays, **options)
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
    """`ssd` on a sequence's first steps, and the window from which `ssd_step` continues; as `retrograd.ssd_prefill`."""
    arguments = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arguments["initial_state"] = initial_state
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    arrays = _checked(Prefill, arguments, options)
    if not known(arrays["x"].shape[1]):
        raise bad_shape(Prefill.op, "x", arrays["x"].shape, "a number of steps, which decides what the window holds")
    return generation.prefill(jax_namespace(), _ssd, arrays, options)


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
    """One step of generation with the bits of training: (y, the window after it); as `retrograd.ssd_step`.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import ssd_prefill, ssd_step
        >>> x, dt, A, B = jnp.ones((1, 4, 8, 64)), jnp.ones((1, 4, 8)), -jnp.ones(8), jnp.ones((1, 4, 1, 128))
        >>> y, window = ssd_prefill(x, dt, A, B, B)
        >>> y, window = ssd_step(window, x[:, 0], dt[:, 0], A, B[:, 0], B[:, 0])
        >>> int(window.steps[0])
        5
    """
    window_arrays = generation.arrays_of_window(window)
    arguments = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    options = {"dt_softplus": dt_softplus, "dt_limit": as_tuple(dt_limit)}
    arrays = _checked(Step, window_arrays | arguments, options)
    window = SsdWindow(*(arrays[name] for name in window_arrays))
    rows = {name: arrays[name] for name in ROWS}
    shared = {**{name: arrays[name] for name in ("A", "D", "dt_bias")}, **options}
    return generation.step(jax_namespace(), _ssd, window, rows, shared, arrays["z"])


def _checked(call: type[CallSpec], arguments: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    arrays = arrays_of(call.op, arguments, required_count(call))
    with with_open_sizes(call.op, arrays):
        check(call, params_of(arrays), options)
    return arrays


def _ssd(**given: Any) -> Any:
    """All results of `ssd`."""
    return _bound(*OP.complete(given))
