"""A language model of layers: tokens to logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, overload

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Int32

from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.core.jax.context import Context
from retrograd.models.config import MambaConfig, is_size
from retrograd.models.shapes import EMBEDDING, HEAD, NORM, block_shapes, layer_prefix, model_shapes

from .embedding import embed
from .layers import at_least_float32, gated_mlp, norm, product
from .mixer import MIXERS, LayerState, layer_state
from .parameters import Params, check, check_config, check_context, check_kind, check_tokens, under

State = Sequence[LayerState]  # one for each layer


def block(
    params: Params,
    config: MambaConfig,
    number: int,
    x: Float[Array, "B T d_model"],
    stream: Float[Array, "B T d_model"] | None,
    state: LayerState | None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    context: Context | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B T d_model"], Float[Array, "B T d_model"], LayerState | None]:
    """A layer of the model: addition, norm and mixing, in this order, so that the addition is fused into the norm.

    The layer mixes by `mamba`, `mamba2`, `gated_delta_net` or `attention_layer`. With `d_intermediate`, addition, norm
    and `gated_mlp` follow. The next block adds the output to the stream. To save less for the backward pass, use
    `jax.checkpoint(nn.block, static_argnums=(1, 2))`.

    Args:
        params: of the block, `norm.weight` and `mixer.*`, and with `d_intermediate` `norm2.weight` and `mlp.*`.
        config: sizes.
        number: of the layer, from 0; it says which layer it is. A static argument of `jax.jit`.
        x: (B, T, d_model), the output of the previous block.
        stream: (B, T, d_model), None before the first block.
        state, cu_seqlens, context: see `mamba`.
        exact: see `language_model`.

    Returns:
        (out, stream, state).

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> config = nn.MambaConfig(d_model=64, n_layer=1, vocab_size=256, d_intermediate=128)
        >>> params = nn.init(jax.random.key(0), config)
        >>> prefix = "backbone.layers.0."
        >>> own = {name.removeprefix(prefix): array for name, array in params.items() if name.startswith(prefix)}
        >>> out, stream, _ = nn.block(own, config, 0, jnp.ones((2, 100, 64)), None)
        >>> (out + stream).shape
        (2, 100, 64)
    """
    return _block(
        "block", params, config, number, x, stream, state, {"cu_seqlens": cu_seqlens, "context": context}, exact
    )


def block_step(
    params: Params,
    config: MambaConfig,
    number: int,
    x: Float[Array, "B d_model"],
    stream: Float[Array, "B d_model"] | None,
    state: LayerState,
    *,
    exact: bool = False,
) -> tuple[Float[Array, "B d_model"], Float[Array, "B d_model"], LayerState]:
    """One step of `block`."""
    return _block("block_step", params, config, number, x, stream, state, None, exact)


def _block(
    where: str,
    params: Params,
    config: MambaConfig,
    number: int,
    x: Array,
    stream: Array | None,
    state: LayerState | None,
    time: dict[str, Any] | None,
    exact: bool,
) -> tuple[Array, Array, Any]:
    """A block over a sequence with these arguments of time, or over one step."""
    check_config(where, config)
    if not is_size(number, 0) or number >= config.n_layer:
        raise bad_value(where, "number", number, f"a layer's, from 0 to {config.n_layer - 1}")
    check(where, params, block_shapes(config, number))
    h, total = norm(params["norm.weight"], x, stream)
    if stream is None and config.residual_in_fp32:
        total = at_least_float32(x)
    layer = config.layer(number)
    mixer, own = MIXERS[type(layer)], under(params, "mixer.")
    mix = mixer.step if time is None else partial(mixer.forward, **time)
    out, after = mix(own, layer, h, state, exact=exact)
    if config.d_intermediate:
        h, total = norm(params["norm2.weight"], out, total)
        out = gated_mlp(under(params, "mlp."), h, exact=exact)
    return out, total, after


@overload
def language_model(
    params: Params,
    config: MambaConfig,
    tokens: Int[Array, "B T"],
    state: None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    context: Context | None = None,
    dtype: DTypeLike | None = None,
    exact: bool = False,
) -> Float[Array, "B T vocabulary"]: ...


@overload
def language_model(
    params: Params,
    config: MambaConfig,
    tokens: Int[Array, "B T"],
    state: State,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    dtype: DTypeLike | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B T vocabulary"], State]: ...


def language_model(
    params: Params,
    config: MambaConfig,
    tokens: Int[Array, "B T"],
    state: State | None = None,
    *,
    cu_seqlens: Int32[Array, " S+1"] | None = None,
    context: Context | None = None,
    dtype: DTypeLike | None = None,
    exact: bool = False,
) -> Array | tuple[Array, State]:
    """Logits (B, T, padded vocabulary); with a state, (logits, the state after the last token).

    Args:
        params: from `init` or `from_torch`.
        config: sizes; a static argument of `jax.jit`.
        tokens: (B, T), integers below the padded vocabulary. A token outside this range makes the results NaN from
            there on, since nothing can be raised under `jax.jit`.
        state: from `initial_state` or an earlier call; differentiable. Its batch is S if sequences are packed. With
            attention it has a capacity: a sequence with more steps has NaN as its results.
        cu_seqlens: (S + 1,) int32, for B = 1: the start of each packed sequence, and the end of the last.
        context: where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`; tokens and logits
            are then of this device's steps, and cu_seqlens those of all devices. There is no state beside it.
        dtype: of the activations, by default that of the embedding. bfloat16 with float32 parameters is mixed
            precision: weights of products are cast, those of norms, convolutions and scans are not, gradients have the
            dtype of the parameters.
        exact: whether, on an NVIDIA GPU, the logits of `step` have the bits that they have in this function on the
            whole sequence, alone and in any batch. Products are then those of `retrograd.jax.linear`, and a step of
            Mamba-2 or of the gated delta rule computes again up to 64 steps. A state goes on with the `exact` that it
            began with. On a CPU XLA compiles each shape by itself, and nothing is promised beyond the error budget. A
            static argument of `jax.jit`.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Products of float32 have the precision of `jax.default_matmul_precision`, unless they are exact. The embedding's
    gradient has sums of a fixed order, like the ops' gradients; therefore JAX refuses forward mode (`jax.jvp`). Second
    derivatives work.

    Source: Gu and Dao, Mamba (2023), section 3.4 and appendix E.2; Dao and Gu, Transformers are SSMs (2024), section
    9.2.3, for models with attention.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> config = nn.MambaConfig(d_model=64, n_layer=2, vocab_size=256)
        >>> params = nn.init(jax.random.key(0), config)
        >>> tokens = jax.random.randint(jax.random.key(1), (2, 100), 0, 256)
        >>> logits = nn.language_model(params, config, tokens)
        >>> logits.shape
        (2, 100, 256)
        >>> first, state = nn.language_model(params, config, tokens[:, :60], nn.initial_state(config, 2))
        >>> then, state = nn.step(params, config, tokens[:, 60], state)
        >>> bool(jnp.allclose(then, logits[:, 60], atol=1e-4))
        True
    """
    _check_call("language_model", params, config, tokens, ("batch", "time"), state)
    if cu_seqlens is not None and tokens.shape[0] != 1:
        raise bad_shape("language_model", "tokens", tokens.shape, "(1, time), since cu_seqlens is given")
    check_context("language_model", context, state)
    layer = partial(block, cu_seqlens=cu_seqlens, context=context, exact=exact)
    before: Sequence[LayerState | None] = [None] * config.n_layer if state is None else state
    found, after = features(layer, params, config, tokens, before, dtype)
    logits = head(params, config, found, exact)
    return logits if state is None else (logits, after)


def step(
    params: Params,
    config: MambaConfig,
    tokens: Int[Array, " B"],
    state: State,
    *,
    dtype: DTypeLike | None = None,
    exact: bool = False,
) -> tuple[Float[Array, "B vocabulary"], State]:
    """One step of generation: the logits (B, padded vocabulary) after one more token, and the state.

    Args:
        params, config, dtype, exact: see `language_model`.
        tokens: (B,).
        state: from `initial_state`, `language_model` or an earlier step. Where it is not needed any more, donate it:
            with `jax.jit(nn.step, static_argnums=1, donate_argnums=3)` keys are written in place, else to a copy.

    Raises:
        ValueError, TypeError: as `language_model`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> attention = nn.AttentionConfig(num_heads=4, rotary_emb_dim=16)
        >>> config = nn.MambaConfig(d_model=64, n_layer=2, vocab_size=256, attn_layer_idx=(1,), attn_cfg=attention)
        >>> params = nn.init(jax.random.key(0), config)
        >>> state = nn.initial_state(config, 2, capacity=100)
        >>> logits, state = nn.step(params, config, jnp.array([65, 66]), state)
        >>> logits.shape, state[1].k.shape
        ((2, 256), (2, 100, 4, 16))
    """
    if state is None:
        raise bad_type("step", "state", state, "a sequence of a state for each layer")
    _check_call("step", params, config, tokens, ("batch",), state)
    found, after = features(partial(block_step, exact=exact), params, config, tokens, state, dtype)
    return head(params, config, found, exact), after


def initial_state(
    config: MambaConfig, batch: int, dtype: DTypeLike = jnp.float32, *, capacity: int | None = None
) -> State:
    """The state before the first token.

    Args:
        config: sizes.
        batch: sequences.
        dtype: of the activations.
        capacity: the most tokens of a sequence, for whose keys attention needs memory. Of no effect without attention.

    Raises:
        ValueError: for a capacity that is no number of tokens, if there are layers of attention.
        TypeError: for a config that is not a `MambaConfig`.
    """
    check_config("initial_state", config)
    if config.attn_layer_idx and not is_size(capacity):
        expected = f"the most tokens of a sequence, since layers {config.attn_layer_idx} are attention"
        raise bad_value("initial_state", "capacity", capacity, expected)
    layers = map(config.layer, range(config.n_layer))
    return [layer_state(layer, config.d_model, batch, dtype, capacity) for layer in layers]


def features(
    layer: Callable[..., Any],
    params: Params,
    config: MambaConfig,
    tokens: Array,
    state: Sequence[LayerState | None],
    dtype: DTypeLike | None,
) -> tuple[Array, State]:
    """What the head takes, for each token, and the states after the last; `layer` is `block` or `block_step`."""
    x, stream = embed(params[EMBEDDING], tokens), None
    if dtype is not None:
        x = x.astype(dtype)
    after = []
    for number, before in enumerate(state):
        x, stream, own = layer(under(params, layer_prefix(number)), config, number, x, stream, before)
        after.append(own)
    found, _ = norm(params[NORM], x, stream)
    return found, after


def head(params: Params, config: MambaConfig, found: Array, exact: bool) -> Array:
    """The logits of features."""
    return product(found, params[EMBEDDING if config.tie_embeddings else HEAD], exact=exact)


def _check_call(
    where: str, params: Params, config: MambaConfig, tokens: Array, axes: tuple[str, ...], state: State | None
) -> None:
    check_config(where, config)
    check(where, params, dict(model_shapes(config)))
    check_tokens(where, "tokens", tokens, axes)
    if state is None:
        return
    if isinstance(state, LayerState) or not isinstance(state, Sequence):
        raise bad_type(where, "state", state, "a sequence of a state for each layer")
    if len(state) != config.n_layer:
        raise ValueError(f"{where}: state has {len(state)} layers, expected n_layer={config.n_layer}")
    for number, own in enumerate(state):
        check_kind(where, f"state[{number}]", own, MIXERS[type(config.layer(number))].state)
