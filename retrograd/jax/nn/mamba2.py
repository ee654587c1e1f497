"""The layer of Mamba-2: projection, short convolution, state space dual, gated norm, projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int32

from retrograd.core.errors import bad_value
from retrograd.core.jax.context import Context
from retrograd.jax import (
    SsdWindow,
    causal_conv1d,
    causal_conv1d_update,
    rms_norm,
    ssd,
    ssd_prefill,
    ssd_step,
    ssd_update,
)
from retrograd.models.layers import Mamba2Config

from .layers import EPS, beside, linear, split, taps, wider
from .parameters import Params, check_array, check_context, check_kind, check_layer


class Mamba2State(NamedTuple):
    """The state of a layer of Mamba-2 between steps; its size does not depend on how many steps were before.

    Attributes:
        conv: (B, channels of the convolution, d_conv - 1), its last inputs, oldest first, in the activations' dtype.
        ssm: (B, heads, headdim, d_state), float32; None beside a window, which has its own.
        window: of an exact layer after its first steps: what `ssd_step` goes on from.
    """

    conv: Array
    ssm: Array | None
    window: SsdWindow | None = None


def mamba2(
    params: Params,
    config: Mamba2Config,
    u: Float[Array, "B T d_model"],
    state: Mamba2State | None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    context: Context | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B T d_model"], Mamba2State | None]:
    """A layer of Mamba-2, as `retrograd.nn.Mamba2`.

    ::

        z0, x0, z, xBC, dt = in_proj(u)
        x, B, C = silu(causal_conv1d(xBC))
        y   = ssd(x, dt, A, B, C, D)              A = -exp(A_log), delta = softplus(dt + dt_bias) within dt_limit
        y   = rms_norm(y, gate=z)                 without rmsnorm: y silu(z)
        out = out_proj([silu(z0) x0, y])          z0 and x0 have the channels that d_ssm leaves, none by default

    Args:
        params: of the layer, with the names in `retrograd.nn.Mamba2`, such as `in_proj.weight`. Weights are cast to the
            dtype of u for products.
        config: sizes.
        u: (B, T, d_model), float32, bfloat16 or float16.
        state: the state before the first step, differentiable; its batch is S if sequences are packed.
        cu_seqlens: (S + 1,) int32, for B = 1: the start of each packed sequence, and the end of the last.
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`; u and out are then
            of this device's steps, and cu_seqlens those of all devices. There is no state beside it.
        exact: whether products are `retrograd.jax.linear`'s and steps have the bits of the whole; see `language_model`.
            With a window in its state, an exact layer takes no packed sequences.

    Returns:
        (out, state): out (B, T, d_model), and the state after the last step, or None if `state` is None.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Source: Dao and Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
    Space Duality (2024), section 7.1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> own = nn.Mamba2Config(d_state=16, headdim=32)
        >>> config = nn.MambaConfig(d_model=64, n_layer=1, vocab_size=256, ssm_cfg=own)
        >>> params = nn.init(jax.random.key(0), config)
        >>> prefix = "backbone.layers.0.mixer."
        >>> params = {name.removeprefix(prefix): array for name, array in params.items() if name.startswith(prefix)}
        >>> out, _ = nn.mamba2(params, own, jnp.ones((2, 100, 64)))
        >>> out.shape
        (2, 100, 64)
    """
    check_context("mamba2", context, state)
    check_layer("mamba2", params, config, Mamba2Config, u, ("batch", "time"))
    if state is not None:
        _check_state("mamba2", state, exact)
        if state.window is not None and cu_seqlens is not None:
            raise bad_value("mamba2", "cu_seqlens", "boundaries", "None, since the state has a window")
    x: Any
    y: Any
    conv: Any
    parts = _project(params, config, u, exact)
    x = parts.x
    conv, ssm = (state.conv, state.ssm) if state is not None else (None, None)
    time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": state is not None, "context": context}
    x = causal_conv1d(
        x, *taps(params, x), activation="silu", initial_state=conv if conv is None else conv.astype(x.dtype), **time
    )
    if state is not None:
        x, conv = x
    selected = _select(params, config, x, parts)
    if state is not None and exact:
        y, window = _exact_steps(state, selected, cu_seqlens)
        return _out(params, config, y, parts, exact), Mamba2State(conv, None, window)
    y = ssd(**selected, initial_state=ssm, **time)
    if conv is None:
        return _out(params, config, y, parts, exact), None
    y, ssm = y
    return _out(params, config, y, parts, exact), Mamba2State(conv, ssm)


def mamba2_step(
    params: Params, config: Mamba2Config, u: Float[Array, "B d_model"], state: Mamba2State, *, exact: bool = False
) -> tuple[Float[Array, "B d_model"], Mamba2State]:
    """One step of `mamba2`, for generation: (out, the state after it).

    Unless it is exact it rounds differently, see `ssd_update`.
    """
    check_layer("mamba2_step", params, config, Mamba2Config, u, ("batch",))
    _check_state("mamba2_step", state, exact)
    parts = _project(params, config, u, exact)
    x, conv = causal_conv1d_update(parts.x, state.conv.astype(parts.x.dtype), *taps(params, parts.x), activation="silu")
    selected = _select(params, config, x, parts)
    if exact:
        y, window = _exact_step(state, selected)
        return _out(params, config, y, parts, exact), Mamba2State(conv, None, window)
    assert state.ssm is not None
    y, ssm = ssd_update(state.ssm, **selected)
    return _out(params, config, y, parts, exact), Mamba2State(conv, ssm)


def mamba2_state(config: Mamba2Config, d_model: int, batch: int, dtype: DTypeLike = jnp.float32) -> Mamba2State:
    """A state of zeros for `batch` sequences; `conv` in `dtype`."""
    check_kind("mamba2_state", "config", config, Mamba2Config)
    config.check(d_model)
    heads = (config.heads(d_model), config.headdim, config.d_state)
    return Mamba2State(
        jnp.zeros((batch, config.conv_channels(d_model), config.d_conv - 1), dtype),
        jnp.zeros((batch, *heads), wider(dtype, jnp.float32)),
    )


class _Parts(NamedTuple):
    """What in_proj computes: gate and values of the MLP beside the scan, gate of the scan, x with B and C, dt."""

    mlp_gate: Array
    mlp: Array
    gate: Array
    x: Array
    dt: Array


def _check_state(where: str, state: Any, exact: bool) -> None:
    check_kind(where, "state", state, Mamba2State)
    check_array(where, "state.conv", state.conv)
    if state.window is None:
        check_array(where, "state.ssm", state.ssm)
        return
    check_kind(where, "state.window", state.window, SsdWindow)
    if not exact:
        raise bad_value(where, "state.window", "a window", "None, since the layer is not exact")


def _exact_steps(state: Mamba2State, selected: dict[str, Any], cu_seqlens: Array | None) -> tuple[Array, SsdWindow]:
    """y of all steps after a state, with the bits of the whole sequence, and the window after them."""
    if state.window is None:
        return ssd_prefill(**selected, initial_state=state.ssm, cu_seqlens=cu_seqlens)

    def step(window: SsdWindow, own: dict[str, Array]) -> tuple[SsdWindow, Array]:
        y, window = ssd_step(window, **selected | own)
        return window, y

    window, y = jax.lax.scan(step, state.window, _by_step(selected, lambda array: jnp.moveaxis(array, 1, 0)))
    return jnp.moveaxis(y, 0, 1), window


def _exact_step(state: Mamba2State, selected: dict[str, Any]) -> tuple[Array, SsdWindow]:
    """The same of one step, whose arrays have no axis of time."""
    if state.window is not None:
        return ssd_step(state.window, **selected)
    y, window = ssd_prefill(**selected | _by_step(selected, lambda array: array[:, None]), initial_state=state.ssm)
    return y[:, 0], window


def _by_step(selected: dict[str, Any], to: Callable[[Array], Array]) -> dict[str, Array]:
    """The arrays that have a row for each step, mapped."""
    return {name: to(selected[name]) for name in ("x", "dt", "B", "C", "z") if selected[name] is not None}


def _project(params: Params, config: Mamba2Config, u: Array, exact: bool) -> _Parts:
    d = u.shape[-1]
    mlp, channels = config.mlp_channels(d), config.channels(d)
    sizes = (mlp, mlp, channels, config.conv_channels(d), config.heads(d))
    return _Parts(*split(linear(params, "in_proj", u, exact), *sizes))


def _select(params: Params, config: Mamba2Config, x: Array, parts: _Parts) -> dict[str, Any]:
    """The arguments of `ssd` from x, B and C side by side; the parameters in the dtype of its states."""
    of_groups = config.ngroups * config.d_state
    x, B, C = split(x, x.shape[-1] - 2 * of_groups, of_groups, of_groups)
    real = wider(x.dtype, jnp.float32)
    D = params["D"].astype(real)

    def by(array: Array, last: int) -> Array:
        """The channels in heads or groups of so many."""
        return array.reshape(*array.shape[:-1], array.shape[-1] // last, last)

    return {
        "x": by(x, config.headdim),
        "dt": parts.dt,
        "A": -jnp.exp(params["A_log"].astype(real)),
        "B": by(B, config.d_state),
        "C": by(C, config.d_state),
        "D": by(D, config.headdim) if config.D_has_hdim else D,
        "z": None if config.rmsnorm else by(parts.gate, config.headdim),
        "dt_bias": params["dt_bias"].astype(real),
        "dt_softplus": True,
        "dt_limit": config.dt_limit,
    }


def _out(params: Params, config: Mamba2Config, y: Array, parts: _Parts, exact: bool) -> Array:
    """Norm and projection of the scan's result."""
    y = y.reshape(parts.gate.shape)
    if config.rmsnorm:
        y = rms_norm(
            y,
            beside(params["norm.weight"], y),
            gate=parts.gate,
            eps=EPS,
            group_size=y.shape[-1] // config.ngroups,
            norm_before_gate=config.norm_before_gate,
        )
    if parts.mlp.shape[-1]:
        y = jnp.concatenate((jax.nn.silu(parts.mlp_gate) * parts.mlp, y), axis=-1)
    return linear(params, "out_proj", y, exact)
