"""The layer of Mamba-1: projection, short convolution, selective scan, gate, projection."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int32

from retrograd.core.jax.context import Context
from retrograd.jax import causal_conv1d, causal_conv1d_update, selective_scan, selective_state_update
from retrograd.models.layers import Mamba1Config

from .layers import linear, product, split, taps, wider
from .parameters import Params, check_context, check_kind, check_layer, check_state


class MambaState(NamedTuple):
    """The state of a layer of Mamba-1 between steps; its size does not depend on how many steps were before.

    Attributes:
        conv: (B, d_inner, d_conv - 1), the last inputs of the convolution, oldest first, in the activations' dtype.
        ssm: (B, d_inner, d_state), float32.
    """

    conv: Array
    ssm: Array


def mamba(
    params: Params,
    config: Mamba1Config,
    u: Float[Array, "B T d_model"],
    state: MambaState | None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    context: Context | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B T d_model"], MambaState | None]:
    """A layer of Mamba-1, as `retrograd.nn.Mamba`.

    ::

        x, z  = in_proj(u)
        x     = silu(causal_conv1d(x))
        dt, B, C = x_proj(x)
        y     = selective_scan(x, dt_proj(dt), A, B, C, D, z)         A = -exp(A_log), delta = softplus(dt + bias)
        out   = out_proj(y)

    Args:
        params: of the layer, with the names in `retrograd.nn.Mamba`, such as `in_proj.weight`. Weights are cast to the
            dtype of u for products.
        config: sizes.
        u: (B, T, d_model), float32, bfloat16 or float16.
        state: the state before the first step, differentiable; its batch is S if sequences are packed.
        cu_seqlens: (S + 1,) int32, for B = 1: the start of each packed sequence, and the end of the last.
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`; u and out are then
            of this device's steps, and cu_seqlens those of all devices. There is no state beside it.
        exact: whether products are `retrograd.jax.linear`'s and steps have the bits of the whole; see `language_model`.

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
        >>> out, _ = nn.mamba(own, config.ssm_cfg, jnp.ones((2, 100, 64)))
        >>> out.shape
        (2, 100, 64)
    """
    check_context("mamba", context, state)
    check_layer("mamba", params, config, Mamba1Config, u, ("batch", "time"))
    if state is not None:
        check_state("mamba", state, MambaState)
    x: Any
    y: Any
    x, z = jnp.split(linear(params, "in_proj", u, exact), 2, axis=-1)
    conv, ssm = state if state is not None else (None, None)
    time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": state is not None, "context": context}
    x = causal_conv1d(
        x, *taps(params, x), activation="silu", initial_state=conv if conv is None else conv.astype(x.dtype), **time
    )
    if state is not None:
        x, conv = x
    selected = _select(params, config, x, u.shape[-1], exact)
    y = selective_scan(x, **selected, z=z, dt_softplus=True, initial_state=ssm, **time)
    if conv is None:
        return linear(params, "out_proj", y, exact), None
    y, ssm = y
    return linear(params, "out_proj", y, exact), MambaState(conv, ssm)


def mamba_step(
    params: Params, config: Mamba1Config, u: Float[Array, "B d_model"], state: MambaState, *, exact: bool = False
) -> tuple[Float[Array, "B d_model"], MambaState]:
    """One step of `mamba`, for generation: (out, the state after it)."""
    check_layer("mamba_step", params, config, Mamba1Config, u, ("batch",))
    check_state("mamba_step", state, MambaState)
    x, z = jnp.split(linear(params, "in_proj", u, exact), 2, axis=-1)
    x, conv = causal_conv1d_update(x, state.conv.astype(x.dtype), *taps(params, x), activation="silu")
    selected = _select(params, config, x, u.shape[-1], exact)
    y, ssm = selective_state_update(state.ssm, x, **selected, z=z, dt_softplus=True)
    return linear(params, "out_proj", y, exact), MambaState(conv, ssm)


def mamba_state(config: Mamba1Config, d_model: int, batch: int, dtype: DTypeLike = jnp.float32) -> MambaState:
    """A state of zeros for `batch` sequences; `conv` in `dtype`."""
    check_kind("mamba_state", "config", config, Mamba1Config)
    config.check(d_model)
    channels = config.d_inner(d_model)
    return MambaState(
        jnp.zeros((batch, channels, config.d_conv - 1), dtype),
        jnp.zeros((batch, channels, config.d_state), wider(dtype, jnp.float32)),
    )


def _select(params: Params, config: Mamba1Config, x: Array, d_model: int, exact: bool) -> dict[str, Any]:
    """The scan's arguments other than x; dt without its bias, the parameters in the dtype of the scan's states."""
    dt, B, C = split(linear(params, "x_proj", x, exact), config.rank(d_model), config.d_state, config.d_state)
    real = wider(x.dtype, jnp.float32)
    return {
        "dt": product(dt, params["dt_proj.weight"], exact=exact),
        "A": -jnp.exp(params["A_log"].astype(real)),
        "B": B,
        "C": C,
        "D": params["D"].astype(real),
        "dt_bias": params["dt_proj.bias"].astype(real),
    }
