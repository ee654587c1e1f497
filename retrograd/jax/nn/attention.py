"""The layer of causal attention: projection, rotary positions, attention over all keys so far, projection."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int32

from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value, check_nondecreasing
from retrograd.core.jax.arguments import MOST, readable
from retrograd.core.jax.context import Context
from retrograd.core.jax.sharding import explicit
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.packed import steps as packed_steps
from retrograd.jax import attention, causal_conv1d, rms_norm
from retrograd.models.config import is_size
from retrograd.models.layers import AttentionConfig

from .layers import EPS, beside, linear, split, taps
from .parameters import Params, check_array, check_context, check_kind, check_layer
from .rotary import rotated


class AttentionState(NamedTuple):
    """The keys and values of all steps so far; a batch's sequences may have had different numbers of steps.

    Attributes:
        k: (B, capacity, key heads, size), each sequence's keys from its first step on, as attention takes them; what
            lies after its last step is not read. In the activations' dtype.
        v: the values, like k.
        steps: (B,) int32, how many steps each sequence has had.
        conv: (B, channels of q, k and v, d_conv - 1), the last inputs of the convolution; None if there is none.
    """

    k: Array
    v: Array
    steps: Array
    conv: Array | None = None


def attention_layer(
    params: Params,
    config: AttentionConfig,
    u: Float[Array, "B T d_model"],
    state: AttentionState | None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    context: Context | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B T d_model"], AttentionState | None]:
    """A layer of causal attention, as `retrograd.nn.Attention`.

    ::

        q, k, v, up, gate = in_proj(u)                    q, k, v = causal_conv1d([q, k, v]) with d_conv
        q, k = rotated(norm(q)), rotated(norm(k))         norm with qk_norm, rotated with rotary_emb_dim
        y    = attention(q, k, v)
        out  = out_proj([y, up silu(gate)])               up and gate with mlp_dim

    Args:
        params: of the layer, with the names in `retrograd.nn.Attention`, such as `in_proj.weight`. Weights are cast to
            the dtype of u for products.
        config: sizes.
        u: (B, T, d_model), float32, bfloat16 or float16.
        state: the state before the first step, differentiable, not modified; its batch is S if sequences are packed. A
            sequence that gets more steps than the state's capacity has NaN as its results from this call on, since
            nothing can be raised under `jax.jit`.
        cu_seqlens: (S + 1,) int32, for B = 1: the start of each packed sequence, and the end of the last.
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`; u and out are then
            of this device's steps, and cu_seqlens those of all devices. There is no state beside it.
        exact: whether products are `retrograd.jax.linear`'s and steps have the bits of the whole; see `language_model`.

    Returns:
        (out, state): out (B, T, d_model), and the state after the last step, or None if `state` is None.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Source: Vaswani et al., Attention Is All You Need (2017), section 3.2; rotated as by Su et al., RoFormer (2021).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> own = nn.AttentionConfig(num_heads=4, num_heads_kv=2, rotary_emb_dim=16)
        >>> config = nn.MambaConfig(d_model=64, n_layer=1, vocab_size=256, attn_layer_idx=(0,), attn_cfg=own)
        >>> params = nn.init(jax.random.key(0), config)
        >>> prefix = "backbone.layers.0.mixer."
        >>> params = {name.removeprefix(prefix): array for name, array in params.items() if name.startswith(prefix)}
        >>> out, _ = nn.attention_layer(params, own, jnp.ones((2, 100, 64)))
        >>> out.shape
        (2, 100, 64)
        >>> first, state = nn.attention_layer(
        ...     params, own, jnp.ones((2, 60, 64)), nn.attention_layer_state(own, 64, 2, capacity=100)
        ... )
        >>> state.steps.tolist()
        [60, 60]
    """
    check_context("attention_layer", context, state)
    return _attend("attention_layer", params, config, u, ("batch", "time"), state, cu_seqlens, context, exact)


def attention_layer_step(
    params: Params,
    config: AttentionConfig,
    u: Float[Array, "B d_model"],
    state: AttentionState,
    *,
    exact: bool = False,
) -> tuple[Float[Array, "B d_model"], AttentionState]:
    """One step of `attention_layer`, for generation: (out, the state after it)."""
    check_kind("attention_layer_step", "state", state, AttentionState)
    out, after = _attend("attention_layer_step", params, config, u, ("batch",), state, None, None, exact)
    assert after is not None
    return out, after


def attention_layer_state(
    config: AttentionConfig, d_model: int, batch: int, dtype: DTypeLike = jnp.float32, *, capacity: int
) -> AttentionState:
    """A state before the first step of `batch` sequences of at most `capacity` steps, for activations of `dtype`."""
    where = "attention_layer_state"
    check_kind(where, "config", config, AttentionConfig)
    config.check(d_model)
    if not is_size(capacity):
        raise bad_value(where, "capacity", capacity, "a number of steps of at least 1")
    keys = (batch, capacity, config.groups, config.size(d_model))
    return AttentionState(
        jnp.zeros(keys, dtype),
        jnp.zeros(keys, dtype),
        jnp.zeros(batch, jnp.int32),
        jnp.zeros((batch, config.qkv_channels(d_model), config.d_conv - 1), dtype) if config.d_conv else None,
    )


def _attend(
    where: str,
    params: Params,
    config: AttentionConfig,
    u: Array,
    axes: tuple[str, ...],
    state: AttentionState | None,
    cu_seqlens: Array | None,
    context: Context | None,
    exact: bool,
) -> tuple[Array, AttentionState | None]:
    check_layer(where, params, config, AttentionConfig, u, axes)
    if cu_seqlens is not None:
        _check_packing(where, u, cu_seqlens, u.shape[1] if context is None else MOST)
    if state is not None:
        _check_state(where, config, u, state, u.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1)
    rows = u if len(axes) == 2 else u[:, None]
    sharded = explicit(u)
    if state is None or sharded is None:
        out, after = _mixed(params, config, rows, state, cu_seqlens, context, exact)
    else:  # each device has the keys of its own rows, which lie one after the other there
        split_rows, whole = PartitionSpec(sharded.spec[0]), PartitionSpec()
        out, after = jax.shard_map(
            lambda params, u, state: _mixed(params, config, u, state, None, None, exact),
            mesh=sharded.mesh,
            in_specs=(whole, split_rows, split_rows),
            out_specs=split_rows,
        )(dict(params), rows, jax.sharding.reshard(state, NamedSharding(sharded.mesh, split_rows)))
    return out.reshape(u.shape), after


def _mixed(
    params: Params,
    config: AttentionConfig,
    u: Array,
    state: AttentionState | None,
    cu_seqlens: Array | None,
    context: Context | None,
    exact: bool,
) -> tuple[Array, AttentionState | None]:
    """The layer, for arguments that are checked."""
    mlp = config.mlp_channels // 2
    qkv, up, gate = split(linear(params, "in_proj", u, exact), config.qkv_channels(u.shape[-1]), mlp, mlp)
    qkv, conv = _convolved(params, config, qkv, state, cu_seqlens, context)
    steps = _steps(u, cu_seqlens)
    number = steps.number if state is None else steps.number + state.steps[steps.sequence]
    if context is not None:
        number = context.positions(u.shape[1], cu_seqlens)[None]
    q, k, v = _heads(params, config, qkv, number)
    options: dict[str, Any] = {
        "causal": True,
        "scale": config.softmax_scale,
        "window": None if config.window is None else (config.window, 0),
    }
    after = None
    if state is None:
        y = attention(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, context=context, **options)
    else:
        after = _written(state, k, v, number, steps)._replace(conv=conv)
        y = _with_earlier(q, after, steps, options)
    y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])
    if mlp:
        y = jnp.concatenate((y, up * jax.nn.silu(gate)), axis=-1)
    return linear(params, "out_proj", y, exact), after


def _convolved(
    params: Params,
    config: AttentionConfig,
    qkv: Array,
    state: AttentionState | None,
    cu_seqlens: Array | None,
    context: Context | None,
) -> tuple[Array, Array | None]:
    """q, k and v after the convolution, and its last inputs; unchanged and None if there is none."""
    if not config.d_conv:
        return qkv, None
    weights = taps(params, qkv)
    if state is None or state.conv is None:
        return causal_conv1d(qkv, *weights, cu_seqlens=cu_seqlens, context=context), None
    before = state.conv.astype(qkv.dtype)
    return causal_conv1d(qkv, *weights, cu_seqlens=cu_seqlens, initial_state=before, return_final_state=True)


def _heads(params: Params, config: AttentionConfig, qkv: Array, number: Array) -> tuple[Array, Array, Array]:
    """q, k and v by heads, q and k normalised and rotated."""
    counts = (config.num_heads, config.groups, config.groups)
    size = qkv.shape[-1] // sum(counts)
    parts = split(qkv, *(count * size for count in counts))
    q, k, v = (x.reshape(*x.shape[:2], count, size) for x, count in zip(parts, counts, strict=True))
    if config.qk_norm:
        q, k = (rms_norm(x, beside(params[f"{name}_norm.weight"], x), eps=EPS) for name, x in (("q", q), ("k", k)))
    return rotated(q, number, config), rotated(k, number, config), v


class _Steps(NamedTuple):
    """Which step of which sequence each one is; axes of batch and time may be of size 1.

    Attributes:
        bounds: (S + 1,), the first step of each sequence, in all rows one after the other, and the end of the last.
        sequence: (B, T), the number of the sequence.
        number: (B, T), the steps of this call before it in its sequence.
        inside: (B, T), whether the step belongs to a sequence.
    """

    bounds: Int32[Array, " S+1"]
    sequence: Int32[Array, "#B #T"]
    number: Int32[Array, "#B T"]
    inside: Bool[Array, "#B T"]


def _steps(u: Array, cu_seqlens: Array | None) -> _Steps:
    batch, time = u.shape[:2]
    if cu_seqlens is not None:
        bounds = jnp.clip(jnp.asarray(cu_seqlens), 0, time)
        of = packed_steps(jax_namespace(), bounds, time)
        return _Steps(bounds, of.owner[None], of.offset[None], of.inside[None])
    number = jnp.arange(time, dtype=jnp.int32)[None]
    sequences = jnp.arange(batch + 1, dtype=jnp.int32)
    return _Steps(time * sequences, sequences[:-1, None], number, number >= 0)


def _written(state: AttentionState, k: Array, v: Array, number: Array, steps: _Steps) -> AttentionState:
    """The state with the keys and values of these steps."""
    capacity = state.k.shape[1]
    # A step of no sequence is written nowhere: past the end, each at a place of its own.
    place = jnp.where(steps.inside, number, capacity + jnp.arange(k.shape[1], dtype=number.dtype)[None])

    def written(whole: Array, new: Array) -> Array:
        # With unique indices the gradient is a copy too; otherwise it would be a sum without a fixed order.
        at = whole.astype(new.dtype).at[steps.sequence, place]
        return at.set(new, mode="drop", unique_indices=True)

    return AttentionState(written(state.k, k), written(state.v, v), state.steps + jnp.diff(steps.bounds))


def _with_earlier(q: Array, state: AttentionState, steps: _Steps, options: dict[str, Any]) -> Array:
    """Attention of new queries over all keys of a state that has theirs; NaN for sequences that do not fit.

    The rows of keys lie one after the other as packed sequences, each followed by the unused rest of its capacity, a
    sequence without queries. So shapes do not depend on how many steps there were. An empty sequence stands before all
    others, so that there is one even in an empty batch.
    """
    sequences, capacity = state.k.shape[:2]
    end = capacity * jnp.arange(1, sequences + 1, dtype=jnp.int32)
    used = end - capacity + state.steps.clip(0, capacity)
    y = attention(
        _in_one_row(q),
        _in_one_row(state.k),
        _in_one_row(state.v),
        cu_seqlens_q=jnp.repeat(steps.bounds, 2),
        cu_seqlens_k=jnp.pad(jnp.stack((used, end), axis=1).reshape(2 * sequences), (2, 0)),
        **options,
    )
    lost = steps.inside & (state.steps > capacity)[steps.sequence]
    return jnp.where(lost[..., None, None], jnp.nan, y.reshape(q.shape))


def _in_one_row(x: Array) -> Array:
    return x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:])


def _check_packing(where: str, u: Array, cu_seqlens: Any, most: int) -> None:
    check_array(where, "cu_seqlens", cu_seqlens)
    if cu_seqlens.dtype != jnp.int32:
        raise bad_dtype(where, "cu_seqlens", str(cu_seqlens.dtype), ("int32",))
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2:
        raise bad_shape(where, "cu_seqlens", cu_seqlens.shape, "(sequences + 1,)")
    if readable(cu_seqlens):
        check_nondecreasing(where, "cu_seqlens", np.asarray(cu_seqlens).tolist(), most)
    if u.shape[0] != 1:
        raise bad_shape(where, "u", u.shape, "batch=1, since cu_seqlens is given")


def _check_state(where: str, config: AttentionConfig, u: Array, state: Any, sequences: int) -> None:
    check_kind(where, "state", state, AttentionState)
    if (state.conv is None) != (not config.d_conv):
        raise bad_type(where, "state.conv", state.conv, "an array" if config.d_conv else "None, since d_conv is 0")
    for name, array in state._asdict().items():
        if array is not None:
            check_array(where, f"state.{name}", array)
    heads = (config.groups, config.size(u.shape[-1]))
    for name, array in (("k", state.k), ("v", state.v)):
        if array.ndim != 4 or array.shape != (sequences, state.k.shape[1], *heads):
            expected = f"(batch={sequences}, capacity, key heads={heads[0]}, head size={heads[1]}), alike in k and v"
            raise bad_shape(where, f"state.{name}", array.shape, expected)
    if state.steps.dtype != jnp.int32:
        raise bad_dtype(where, "state.steps", str(state.steps.dtype), ("int32",))
    if state.steps.shape != (sequences,):
        raise bad_shape(where, "state.steps", state.steps.shape, f"(batch={sequences},)")
