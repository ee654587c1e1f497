"""Generation of tokens after a prompt, one by one, from a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrograd.core.errors import bad_shape, bad_value

from .checks import check_model, check_number, check_size, check_tokens, check_vocabulary
from .model import LanguageModel
from .sampling import Sampling, Uniforms, seeds_of

# Tokens after the prompt for which a state has room at first: attention looks at all of it, and a step copies it.
ROOM = 1024


@overload
def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"],
    count: int,
    *,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float = ...,
    seed: int | Tensor | None = ...,
    log_probabilities: Literal[False] = ...,
) -> Iterator[Int[Tensor, " B"]]: ...


@overload
def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"],
    count: int,
    *,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float = ...,
    seed: int | Tensor | None = ...,
    log_probabilities: Literal[True],
) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, " B"]]]: ...


def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"],
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | Tensor | None = None,
    log_probabilities: bool = False,
) -> Iterator[Tensor] | Iterator[tuple[Tensor, Tensor]]:
    """Yield the tokens that follow a prompt, each as soon as it is known.

    Args:
        model: the model, whole or wrapped by `torch.compile`.
        prompt: (B, T), at least one token, each from 0 to below the padded vocabulary.
        count: tokens to yield.
        temperature: of the distribution that tokens are drawn from; 0 takes the likeliest token.
        top_k: draw from so many of the likeliest tokens; from all by default.
        top_p: draw from the likeliest tokens whose probabilities add up to this share, one of them at least.
        seed: of each row, (B,) integers, or the first row's, from which the others count up; by default one that
            PyTorch draws. What a row draws from its logits depends on its own seed alone.
        log_probabilities: also yield those of the tokens: (tokens, log probabilities (B,), float32), among all tokens
            whatever top_k and top_p. Those of an exact model are the numbers that `score` returns, to the bit; with
            temperature 0 they are 0.

    Raises:
        ValueError, TypeError: at the call, for an invalid or empty prompt, a negative count or temperature, and a
            module that is no language model. When a token is requested, for logits that are not finite. On a GPU two
            checks would synchronise and are left to PyTorch: tokens outside the vocabulary, and NaN logits after the
            first token. They cause a device-side assertion; with temperature 0, NaN logits yield the NaN's index.

    Example:
        >>> import torch
        >>> from retrograd.nn import LanguageModel, MambaConfig, generate
        >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> len(list(generate(model, torch.tensor([[100, 101, 102]]), 5)))
        5
    """
    check_tokens("generate", prompt, ("batch", "time"), "prompt")
    if prompt.shape[1] < 1:
        raise bad_shape("generate", "prompt", prompt.shape, "(batch, at least one token)")
    check_model("generate", model)
    if prompt.device.type == "cpu":
        check_vocabulary("generate", prompt, model.config, "prompt")
    check_size("generate", "count", count, 0)
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check("generate")
    uniforms = Uniforms(seeds_of("generate", seed, len(prompt)), prompt.device)
    if log_probabilities:
        return _with_log_probabilities(_generate(model, prompt, count, sampling, uniforms), sampling)
    return (tokens for tokens, _ in _generate(model, prompt, count, sampling, uniforms))


def score(model: LanguageModel, tokens: Int[Tensor, "B T"], *, temperature: float = 1.0) -> Float[Tensor, "B T-1"]:
    """The log probability of each token but the first, given those before it, by the forward pass of training.

    Args:
        model: the model, whole or wrapped by `torch.compile`.
        tokens: (B, T), at least one token, each from 0 to below the vocabulary.
        temperature: of the distribution, more than 0.

    Returns:
        (B, T - 1), float32, with a gradient for the model's parameters.

    Raises:
        ValueError, TypeError: for invalid tokens, a temperature that is not positive, and a module that is no language
            model.

    Example:
        >>> import torch
        >>> from retrograd.nn import LanguageModel, MambaConfig, score
        >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> score(model, torch.tensor([[100, 101, 102]])).shape
        torch.Size([1, 2])
    """
    check_tokens("score", tokens, ("batch", "time"))
    if tokens.shape[1] < 1:
        raise bad_shape("score", "tokens", tokens.shape, "(batch, at least one token)")
    check_model("score", model)
    check_number("score", "temperature", temperature)
    if temperature == 0:
        raise bad_value("score", "temperature", temperature, "more than 0")
    if tokens.device.type == "cpu":
        check_vocabulary("score", tokens, model.config)
    logits = model(tokens[:, :-1])[..., : model.config.vocab_size]
    following = tokens[:, 1:].flatten()
    return Sampling(temperature).log_probabilities(logits.flatten(0, 1), following).view(len(tokens), -1)


@torch.no_grad()
def _generate(
    model: LanguageModel, prompt: Tensor, count: int, sampling: Sampling, uniforms: Uniforms
) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens, each with the logits that it was drawn from."""
    batch, time = prompt.shape
    capacity = time + min(count, ROOM)
    features, state = model.backbone(prompt, model.initial_state(batch, capacity=capacity))
    logits = model.lm_head(features[:, -1])
    for number in range(count):
        logits = logits[:, : model.config.vocab_size]
        # On a GPU this synchronises, so only the first token is checked there; bad weights show in it.
        if (number == 0 or logits.device.type == "cpu") and not bool(logits.amax(-1).isfinite().all()):
            raise ValueError(f"generate: model has NaN or infinite logits for token {number}, expected finite numbers")
        tokens = sampling.draw(logits, uniforms.at(number))
        yield tokens, logits
        if number + 1 < count:
            if time + number + 1 > capacity:
                capacity = min(time + count, 2 * capacity)
                state = model.grown(state, capacity)
            logits, state = model.step(tokens, state)


def _with_log_probabilities(
    drawn: Iterator[tuple[Tensor, Tensor]], sampling: Sampling
) -> Iterator[tuple[Tensor, Tensor]]:
    for tokens, logits in drawn:
        yield tokens, sampling.log_probabilities(logits, tokens)
