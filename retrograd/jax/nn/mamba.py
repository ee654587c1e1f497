"""The Mamba block: projection, short convolution, selective scan, gate, projection."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int32

from retrograd.core.errors import bad_shape, bad_type
from retrograd.jax import causal_conv1d, causal_conv1d_update, selective_scan, selective_state_update
from retrograd.models.config import MambaConfig
from retrograd.models.shapes import mamba_shapes

from .layers import beside, linear, wider
from .parameters import Params, check, check_array, check_config


class MambaState(NamedTuple):
    """The state of a block between steps; its size does not depend on how many steps were before.

    Attributes:
        conv: (B, d_inner, d_conv - 1), the last inputs of the convolution, oldest first, in the activations' dtype.
        ssm: (B, d_inner, d_state), float32.
    """

    conv: Array
    ssm: Array


def mamba(
    params: Params,
    config: MambaConfig,
    u: Float[Array, "B T d_model"],
    state: MambaState | None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
) -> tuple[Float[Array, "B T d_model"], MambaState | None]:
    """Mamba-1's block, as `retrograd.nn.Mamba`.

    ::

        x, z  = in_proj(u)
        x     = silu(causal_conv1d(x))
        dt, B, C = x_proj(x)
        y     = selective_scan(x, dt_proj(dt), A, B, C, D, z)         A = -exp(A_log), delta = softplus(dt + bias)
        out   = out_proj(y)

    Args:
        params: of the block, with the names in `retrograd.nn.Mamba`, such as `in_proj.weight`. Weights are cast to the
            dtype of u for products.
        config: sizes.
        u: (B, T, d_model), float32, bfloat16 or float16.
        state: the state before the first step, differentiable; its batch is S if sequences are packed.
        cu_seqlens: (S + 1,) int32, for B = 1: the start of each packed sequence, and the end of the last.

    Returns:
        (out, state): out (B, T, d_model), and the state after the last step, or None if `state` is None.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Source: Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), section 3.4.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> config = nn.MambaConfig(d_model=64, n_layer=1, vocab_size=256)
        >>> params = nn.init(jax.random.key(0), config)
        >>> prefix = "backbone.layers.0.mixer."
        >>> own = {name.removeprefix(prefix): array for name, array in params.items() if name.startswith(prefix)}
        >>> out, _ = nn.mamba(own, config, jnp.ones((2, 100, 64)))
        >>> out.shape
        (2, 100, 64)
    """
    _check("mamba", params, config, u, ("batch", "time"), state)
    x: Any
    y: Any
    x, z = jnp.split(linear(params, "in_proj", u), 2, axis=-1)
    conv, ssm = state if state is not None else (None, None)
    time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": state is not None}
    x = causal_conv1d(
        x, *_taps(params, x), activation="silu", initial_state=conv if conv is None else conv.astype(x.dtype), **time
    )
    if state is not None:
        x, conv = x
    y = selective_scan(x, **_select(params, config, x), z=z, dt_softplus=True, initial_state=ssm, **time)
    if conv is None:
        return linear(params, "out_proj", y), None
    y, ssm = y
    return linear(params, "out_proj", y), MambaState(conv, ssm)


def mamba_step(
    params: Params, config: MambaConfig, u: Float[Array, "B d_model"], state: MambaState
) -> tuple[Float[Array, "B d_model"], MambaState]:
    """One step of `mamba`, for generation: (out, the state after it)."""
    if state is None:
        raise bad_type("mamba_step", "state", state, "a MambaState")
    _check("mamba_step", params, config, u, ("batch",), state)
    x, z = jnp.split(linear(params, "in_proj", u), 2, axis=-1)
    x, conv = causal_conv1d_update(x, state.conv.astype(x.dtype), *_taps(params, x), activation="silu")
    y, ssm = selective_state_update(state.ssm, x, **_select(params, config, x), z=z, dt_softplus=True)
    return linear(params, "out_proj", y), MambaState(conv, ssm)


def mamba_state(config: MambaConfig, batch: int, dtype: DTypeLike = jnp.float32) -> MambaState:
    """A state of zeros for `batch` sequences; `conv` in `dtype`."""
    return MambaState(
        jnp.zeros((batch, config.d_inner, config.d_conv - 1), dtype),
        jnp.zeros((batch, config.d_inner, config.d_state), wider(dtype, jnp.float32)),
    )


def _check(
    where: str, params: Params, config: MambaConfig, u: Array, axes: tuple[str, ...], state: MambaState | None
) -> None:
    check_config(where, config)
    check(where, params, mamba_shapes(config))
    check_array(where, "u", u)
    if u.ndim != len(axes) + 1 or u.shape[-1] != config.d_model:
        raise bad_shape(where, "u", u.shape, f"({', '.join(axes)}, d_model={config.d_model})")
    if state is None:
        return
    if not isinstance(state, MambaState):
        raise bad_type(where, "state", state, "a MambaState")
    for name, array in state._asdict().items():
        check_array(where, f"state.{name}", array)


def _taps(params: Params, x: Array) -> tuple[Array, Array | None]:
    bias = params.get("conv1d.bias")
    return beside(params["conv1d.weight"], x).squeeze(1), None if bias is None else beside(bias, x)


def _select(params: Params, config: MambaConfig, x: Array) -> dict[str, Any]:
    """The scan's arguments other than x; dt without its bias, the parameters in the dtype of the scan's states."""
    R, N = config.rank, config.d_state
    dt, B, C = jnp.split(linear(params, "x_proj", x), (R, R + N), axis=-1)
    real = wider(x.dtype, jnp.float32)
    return {
        "dt": dt @ params["dt_proj.weight"].astype(dt.dtype).T,
        "A": -jnp.exp(params["A_log"].astype(real)),
        "B": B,
        "C": C,
        "D": params["D"].astype(real),
        "dt_bias": params["dt_proj.bias"].astype(real),
    }
