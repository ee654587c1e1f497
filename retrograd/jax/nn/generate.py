"""Generation of tokens after a prompt, one by one, from a state; and the log probabilities of given tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Int32

from retrograd.core.errors import bad_shape, bad_value
from retrograd.models.config import MambaConfig
from retrograd.models.generation import check_number, check_size, stop_tokens
from retrograd.models.shapes import EMBEDDING, model_shapes

from .model import block, block_step, features, head, initial_state, language_model
from .parameters import Params, check, check_config, check_tokens
from .sampling import Sampling, keys_of, seeds_of, words_at

Prompt = Int[Array, "B T"] | Sequence[Int[Array, " T"]]


@overload
def generate(
    params: Params,
    config: MambaConfig,
    prompt: Prompt,
    count: int,
    *,
    dtype: DTypeLike | None = ...,
    exact: bool = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float = ...,
    seed: int | Int[Array, "*B"] = ...,
    stop: int | Collection[int] = ...,
    log_probabilities: Literal[False] = ...,
) -> Int32[Array, "B count"]: ...


@overload
def generate(
    params: Params,
    config: MambaConfig,
    prompt: Prompt,
    count: int,
    *,
    dtype: DTypeLike | None = ...,
    exact: bool = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float = ...,
    seed: int | Int[Array, "*B"] = ...,
    stop: int | Collection[int] = ...,
    log_probabilities: Literal[True],
) -> tuple[Int32[Array, "B count"], Float[Array, "B count"]]: ...


def generate(
    params: Params,
    config: MambaConfig,
    prompt: Prompt,
    count: int,
    *,
    dtype: DTypeLike | None = None,
    exact: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | Int[Array, "*B"] = 0,
    stop: int | Collection[int] = (),
    log_probabilities: bool = False,
) -> Array | tuple[Array, Array]:
    """The tokens that follow a prompt, each drawn after those before it: (B, count), int32.

    Args:
        params, config, dtype, exact: see `language_model`.
        prompt: (B, T), integers below the padded vocabulary; or a list of B arrays (T_b,), whose lengths may differ. At
            least one token each.
        count: tokens to generate.
        temperature: of the distribution that tokens are drawn from; 0 takes the likeliest token.
        top_k: draw from so many of the likeliest tokens; from all by default.
        top_p: draw from the likeliest tokens whose probabilities add up to this share, one of them at least.
        seed: of each row, (B,) integers from 0 to 2^32 - 1, or the first row's, from which the others count up. What a
            row draws from its logits depends on its own seed alone.
        stop: a token, or several, that end a row. It has the same token from there on, with the log probability 0.
        log_probabilities: whether to return those of the tokens, too.

    Under `jax.jit`, params, prompt and seed are traced, all others are static arguments.

    Returns:
        tokens; or (tokens, log probabilities), these (B, count), float32, among all tokens whatever top_k and top_p.
        Those of an exact model are the numbers that `score` returns, on an NVIDIA GPU to the bit; with temperature 0
        they are 0. Since nothing can be raised under `jax.jit`, a row has tokens of -1 from where its logits are not
        finite, as after a token outside of the vocabulary.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Probabilities are rounded to multiples of 2^-31: a token below 2^-32 is never drawn.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> config = nn.MambaConfig(d_model=64, n_layer=2, vocab_size=256)
        >>> params = nn.init(jax.random.key(0), config)
        >>> prompt = jnp.array([[100, 101, 102], [65, 66, 67]])
        >>> tokens, found = nn.generate(params, config, prompt, 5, seed=1, log_probabilities=True)
        >>> tokens.shape
        (2, 5)
        >>> expected = nn.score(params, config, jnp.concatenate((prompt, tokens), axis=1))[:, 2:]
        >>> bool(jnp.allclose(found, expected, atol=1e-4))
        True
    """
    check_config("generate", config)
    check("generate", params, dict(model_shapes(config)))
    rows, lengths = _rows(prompt)
    check_size("generate", "count", count, 0)
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check("generate")
    tokens, found = _generated(
        dict(params),
        rows,
        seeds_of("generate", seed, rows.shape[0] if lengths is None else len(lengths)),
        config=config,
        lengths=lengths,
        count=count,
        dtype=None if dtype is None else jnp.dtype(dtype),
        exact=exact,
        sampling=sampling,
        stop=stop_tokens("generate", stop, config),
        log_probabilities=log_probabilities,
    )
    return (tokens, found) if log_probabilities else tokens


def score(
    params: Params,
    config: MambaConfig,
    tokens: Int[Array, "B T"],
    *,
    dtype: DTypeLike | None = None,
    exact: bool = False,
    temperature: float = 1.0,
) -> Float[Array, "B T-1"]:
    """The log probability of each token but the first, given those before it, by the forward pass of training.

    Args:
        params, config, dtype, exact: see `language_model`.
        tokens: (B, T), at least one token, each from 0 to below the vocabulary. The score of another token is NaN, and
            those after it are if the embedding has no row for it.
        temperature: of the distribution, more than 0. A static argument of `jax.jit`.

    Returns:
        (B, T - 1), float32, with a gradient for the parameters.

    Raises:
        ValueError, TypeError: naming the argument, what was expected and what was passed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import nn
        >>> config = nn.MambaConfig(d_model=64, n_layer=2, vocab_size=256)
        >>> params = nn.init(jax.random.key(0), config)
        >>> nn.score(params, config, jnp.array([[100, 101, 102]])).shape
        (1, 2)
    """
    check_config("score", config)
    check("score", params, dict(model_shapes(config)))
    check_tokens("score", "tokens", tokens, ("batch", "time"))
    if tokens.shape[1] < 1:
        raise bad_shape("score", "tokens", tokens.shape, "(batch, at least one token)")
    check_number("score", "temperature", temperature)
    if temperature == 0:
        raise bad_value("score", "temperature", temperature, "more than 0")
    logits = language_model(params, config, tokens[:, :-1], dtype=dtype, exact=exact)
    return Sampling(temperature).log_probabilities(logits[..., : config.vocab_size], jnp.asarray(tokens[:, 1:]))


def _rows(prompt: Any) -> tuple[Array, tuple[int, ...] | None]:
    """The prompt as rows; if lengths differ one row after the other in a single one, and the lengths."""
    if not isinstance(prompt, list | tuple):
        check_tokens("generate", "prompt", prompt, ("batch", "time"))
        if prompt.shape[1] < 1:
            raise bad_shape("generate", "prompt", prompt.shape, "(batch, at least one token)")
        return prompt, None
    if not prompt:
        raise bad_value("generate", "prompt", prompt, "at least one sequence")
    for place, row in enumerate(prompt):
        check_tokens("generate", f"prompt[{place}]", row, ("time",))
        if row.shape[0] < 1:
            raise bad_shape("generate", f"prompt[{place}]", row.shape, "(at least one token,)")
    lengths = tuple(row.shape[0] for row in prompt)
    rows = [jnp.asarray(row).astype(jnp.int32) for row in prompt]
    if len(set(lengths)) == 1:
        return jnp.stack(rows), None
    return jnp.concatenate(rows)[None], lengths


# Jitted, so that calls outside of a jitted function compile it once.
@partial(
    jax.jit, static_argnames=("config", "lengths", "count", "dtype", "exact", "sampling", "stop", "log_probabilities")
)
def _generated(
    params: Params,
    prompt: Array,
    seeds: Array,
    *,
    config: MambaConfig,
    lengths: tuple[int, ...] | None,
    count: int,
    dtype: jnp.dtype | None,
    exact: bool,
    sampling: Sampling,
    stop: tuple[int, ...],
    log_probabilities: bool,
) -> tuple[Array, Array | None]:
    """Tokens and log probabilities, None if not wanted, for arguments that are checked."""
    time = prompt.shape[1] if lengths is None else max(lengths)
    bounds = None if lengths is None else jnp.asarray(np.cumsum((0, *lengths), dtype=np.int32))
    activations = params[EMBEDDING].dtype if dtype is None else dtype
    state = initial_state(config, len(seeds), activations, capacity=time + count)
    found, state = features(partial(block, cu_seqlens=bounds, exact=exact), params, config, prompt, state, dtype)
    keys = keys_of(seeds)

    def drawn(found: Array, number: Any) -> tuple[Array, Array | None]:
        logits = head(params, config, found, exact)[:, : config.vocab_size]
        tokens = sampling.draw(logits, words_at(keys, number))
        return tokens, sampling.log_probabilities(logits, tokens) if log_probabilities else None

    def ending(tokens: Array) -> Array:
        return (tokens[:, None] == jnp.array(stop, jnp.int32)[None]).any(1)

    def following(carry: Any, number: Array) -> Any:
        tokens, ended, state = carry
        found, state = features(partial(block_step, exact=exact), params, config, tokens, state, dtype)
        new, probable = drawn(found, number)
        new = jnp.where(ended, tokens, new)
        result = new, None if probable is None else jnp.where(ended, 0, probable)
        return (new, ended | ending(new), state), result

    first = drawn(found[:, -1] if bounds is None else found[0, bounds[1:] - 1], 0)
    carry = first[0], ending(first[0]), state
    _, others = jax.lax.scan(following, carry, jnp.arange(1, count, dtype=jnp.uint32))
    both: tuple[Array, Array | None] = jax.tree.map(
        lambda one, more: jnp.concatenate((one[None], more))[:count].T, first, others
    )
    return both
