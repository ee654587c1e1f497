"""The layer of the gated delta rule: projection, short convolution, the rule, gated norm, projection."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int32

from retrograd.core.errors import bad_value
from retrograd.core.jax.context import Context
from retrograd.core.xp import aligned
from retrograd.jax import (
    GatedDeltaRuleWindow,
    causal_conv1d,
    causal_conv1d_update,
    gated_delta_rule,
    gated_delta_rule_prefill,
    gated_delta_rule_step,
    gated_delta_rule_update,
    rms_norm,
)
from retrograd.models.layers import GatedDeltaNetConfig

from .layers import at_least_float32, beside, linear, split, taps, wider
from .parameters import Params, check_array, check_kind, check_layer


class GatedDeltaNetState(NamedTuple):
    """The state of a layer of the gated delta rule between steps; its size does not depend on how many were before.

    Attributes:
        conv: (B, channels of q, k and v, d_conv - 1), the last inputs of the convolution, oldest first, in the
            activations' dtype.
        recurrent: (B, H, V, K), float32; None beside a window, which has its own.
        window: of an exact layer after its first steps: what `gated_delta_rule_step` goes on from.
    """

    conv: Array
    recurrent: Array | None
    window: GatedDeltaRuleWindow | None = None


def gated_delta_net(
    params: Params,
    config: GatedDeltaNetConfig,
    u: Float[Array, "B T d_model"],
    state: GatedDeltaNetState | None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    context: Context | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B T d_model"], GatedDeltaNetState | None]:
    """A layer of the gated delta rule, as `retrograd.nn.GatedDeltaNet`.

    ::

        q, k, v, z, b, a = in_proj(u)
        q, k, v = silu(causal_conv1d(q, k, v))
        o   = gated_delta_rule(q, k, v, g, beta, normalize_qk=True)
                                                 g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)
        out = out_proj(rms_norm(o) silu(z))      the norm of each head, with one weight for all heads

    Args:
        params: of the layer, with the names in `retrograd.nn.GatedDeltaNet`, such as `in_proj.weight`. Weights are cast
            to the dtype of u for products.
        config: sizes.
        u: (B, T, d_model), float32, bfloat16 or float16.
        state: the state before the first step, differentiable; its batch is S if sequences are packed.
        cu_seqlens: (S + 1,) int32, for B = 1: the start of each packed sequence, and the end of the last.
        context: None: steps of this layer cannot be divided over devices.
        exact: whether products are `retrograd.jax.linear`'s and steps have the bits of the whole; see `language_model`.
            With a window in its state, an exact layer takes no packed sequences.

    Returns:
        (out, state): out (B, T, d_model), and the state after the last step, or None if `state` is None.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks: Improving Mamba2 with Delta Rule (2024), section 3.4, in
    the form of Qwen3-Next.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> own = nn.GatedDeltaNetConfig(num_heads=4, num_heads_qk=2, head_dim_qk=16, head_dim_v=32)
        >>> config = nn.MambaConfig(d_model=64, n_layer=1, vocab_size=256, ssm_cfg=own)
        >>> params = nn.init(jax.random.key(0), config)
        >>> prefix = "backbone.layers.0.mixer."
        >>> params = {name.removeprefix(prefix): array for name, array in params.items() if name.startswith(prefix)}
        >>> out, _ = nn.gated_delta_net(params, own, jnp.ones((2, 100, 64)))
        >>> out.shape
        (2, 100, 64)
    """
    if context is not None:
        raise bad_value("gated_delta_net", "context", "given", "None: its steps cannot be divided over devices")
    check_layer("gated_delta_net", params, config, GatedDeltaNetConfig, u, ("batch", "time"))
    if state is not None:
        _check_state("gated_delta_net", state, exact)
        if state.window is not None and cu_seqlens is not None:
            raise bad_value("gated_delta_net", "cu_seqlens", "boundaries", "None, since the state has a window")
    x: Any
    o: Any
    conv: Any
    parts = _project(params, config, u, exact)
    conv, recurrent = (state.conv, state.recurrent) if state is not None else (None, None)
    time: dict[str, Any] = {"cu_seqlens": cu_seqlens, "return_final_state": state is not None}
    x, before = parts.x, None if conv is None else conv.astype(parts.x.dtype)
    x = causal_conv1d(x, *taps(params, x), activation="silu", initial_state=before, **time)
    if state is not None:
        x, conv = x
    rows = _rows(params, config, x, parts)
    if state is not None and exact:
        o, window = _exact_steps(state, rows, cu_seqlens)
        return _out(params, config, o, parts, exact), GatedDeltaNetState(conv, None, window)
    o = gated_delta_rule(**rows, initial_state=recurrent, normalize_qk=True, **time)
    if conv is None:
        return _out(params, config, o, parts, exact), None
    o, recurrent = o
    return _out(params, config, o, parts, exact), GatedDeltaNetState(conv, recurrent)


def gated_delta_net_step(
    params: Params,
    config: GatedDeltaNetConfig,
    u: Float[Array, "B d_model"],
    state: GatedDeltaNetState,
    *,
    exact: bool = False,
) -> tuple[Float[Array, "B d_model"], GatedDeltaNetState]:
    """One step of `gated_delta_net`, for generation: (out, the state after it).

    Unless it is exact it rounds differently, see `gated_delta_rule_update`.
    """
    check_layer("gated_delta_net_step", params, config, GatedDeltaNetConfig, u, ("batch",))
    _check_state("gated_delta_net_step", state, exact)
    parts = _project(params, config, u, exact)
    x, conv = causal_conv1d_update(parts.x, state.conv.astype(parts.x.dtype), *taps(params, parts.x), activation="silu")
    rows = _rows(params, config, x, parts)
    if exact:
        o, window = _exact_step(state, rows)
        return _out(params, config, o, parts, exact), GatedDeltaNetState(conv, None, window)
    assert state.recurrent is not None
    o, recurrent = gated_delta_rule_update(state.recurrent, **rows, normalize_qk=True)
    return _out(params, config, o, parts, exact), GatedDeltaNetState(conv, recurrent)


def gated_delta_net_state(
    config: GatedDeltaNetConfig, d_model: int, batch: int, dtype: DTypeLike = jnp.float32
) -> GatedDeltaNetState:
    """A state of zeros for `batch` sequences; `conv` in `dtype`."""
    check_kind("gated_delta_net_state", "config", config, GatedDeltaNetConfig)
    return GatedDeltaNetState(
        jnp.zeros((batch, config.conv_channels, config.d_conv - 1), dtype),
        jnp.zeros((batch, config.num_heads, config.head_dim_v, config.head_dim_qk), wider(dtype, jnp.float32)),
    )


class _Parts(NamedTuple):
    """What in_proj computes: q, k and v before the convolution, the gate, and what beta and g are made of."""

    x: Array
    gate: Array
    b: Array
    a: Array


def _check_state(where: str, state: Any, exact: bool) -> None:
    check_kind(where, "state", state, GatedDeltaNetState)
    check_array(where, "state.conv", state.conv)
    if state.window is None:
        check_array(where, "state.recurrent", state.recurrent)
        return
    check_kind(where, "state.window", state.window, GatedDeltaRuleWindow)
    if not exact:
        raise bad_value(where, "state.window", "a window", "None, since the layer is not exact")


def _exact_steps(
    state: GatedDeltaNetState, rows: dict[str, Any], cu_seqlens: Array | None
) -> tuple[Array, GatedDeltaRuleWindow]:
    """o of all steps after a state, with the bits of the whole sequence, and the window after them."""
    if state.window is None:
        before = state.recurrent
        return gated_delta_rule_prefill(**rows, initial_state=before, cu_seqlens=cu_seqlens, normalize_qk=True)

    def step(window: GatedDeltaRuleWindow, own: dict[str, Any]) -> tuple[GatedDeltaRuleWindow, Array]:
        o, window = gated_delta_rule_step(window, **own, normalize_qk=True)
        return window, o

    by_step = {name: jnp.moveaxis(array, 1, 0) for name, array in rows.items()}
    window, o = jax.lax.scan(step, state.window, by_step)
    return jnp.moveaxis(o, 0, 1), window


def _exact_step(state: GatedDeltaNetState, rows: dict[str, Any]) -> tuple[Array, GatedDeltaRuleWindow]:
    """The same of one step, whose arrays have no axis of time."""
    if state.window is not None:
        return gated_delta_rule_step(state.window, **rows, normalize_qk=True)
    o, window = _exact_steps(state, {name: array[:, None] for name, array in rows.items()}, None)
    return o[:, 0], window


def _project(params: Params, config: GatedDeltaNetConfig, u: Array, exact: bool) -> _Parts:
    return _Parts(*split(linear(params, "in_proj", u, exact), *config.parts))


def _rows(params: Params, config: GatedDeltaNetConfig, x: Array, parts: _Parts) -> dict[str, Any]:
    """What `gated_delta_rule` takes with a row per step, from q, k and v side by side."""
    q, k, v = split(x, config.key_channels, config.key_channels, config.value_channels)

    def by(array: Array, last: int) -> Array:
        """The channels in heads of so many."""
        return array.reshape(*array.shape[:-1], array.shape[-1] // last, last)

    a, beta = at_least_float32(parts.a), jax.nn.sigmoid(at_least_float32(parts.b))
    A_log, dt_bias = (aligned(params[name].astype(a.dtype), a) for name in ("A_log", "dt_bias"))
    return {
        "q": by(q, config.head_dim_qk),
        "k": by(k, config.head_dim_qk),
        "v": by(v, config.head_dim_v),
        "g": -jnp.exp(A_log) * jax.nn.softplus(a + dt_bias),
        "beta": 2 * beta if config.negative_eigenvalues else beta,
    }


def _out(params: Params, config: GatedDeltaNetConfig, o: Array, parts: _Parts, exact: bool) -> Array:
    """Norm and projection of the rule's result."""
    gate, weight = parts.gate.reshape(o.shape), beside(params["norm.weight"], o)
    o = rms_norm(o, weight, gate=gate, eps=config.norm_eps, norm_before_gate=True)
    return linear(params, "out_proj", o.reshape(parts.gate.shape), exact)
