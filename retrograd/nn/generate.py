"""Generation of tokens after a prompt, one by one, from a state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.models.generation import check_number, check_size, stop_tokens

from .checks import check_model, check_tokens, check_vocabulary
from .model import LanguageModel, State
from .reading import HostCopy
from .sampling import Sampling, Uniforms, seeds_of
from .steps import Steps

# Tokens after the prompt for which a state has room at first: a long cache of attention takes memory.
ROOM = 1024


@overload
def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"] | Sequence[Int[Tensor, " T"]],
    count: int,
    *,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float = ...,
    seed: int | Tensor | None = ...,
    stop: int | Collection[int] = ...,
    log_probabilities: Literal[False] = ...,
) -> Iterator[Int[Tensor, " B"]]: ...


@overload
def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"] | Sequence[Int[Tensor, " T"]],
    count: int,
    *,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float = ...,
    seed: int | Tensor | None = ...,
    stop: int | Collection[int] = ...,
    log_probabilities: Literal[True],
) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, " B"]]]: ...


def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"] | Sequence[Int[Tensor, " T"]],
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | Tensor | None = None,
    stop: int | Collection[int] = (),
    log_probabilities: bool = False,
) -> Iterator[Tensor] | Iterator[tuple[Tensor, Tensor]]:
    """Yield the tokens that follow a prompt, (B,) for each step.

    The prompt is computed by the kernels of training, prompts of different lengths as packed sequences. On a GPU a step
    is a replay of a CUDA graph, and nothing waits for it: `read_back` gives the values while the next step runs. The
    parameters must stay where they are; new values in them are used.

    Args:
        model: the model, whole or wrapped by `torch.compile`.
        prompt: (B, T), at least one token, each from 0 to below the padded vocabulary; or a sequence of B tensors (T,)
            of any lengths.
        count: tokens to yield.
        temperature: of the distribution that tokens are drawn from; 0 takes the likeliest token.
        top_k: draw from so many of the likeliest tokens; from all by default.
        top_p: draw from the likeliest tokens whose probabilities add up to this share, one of them at least.
        seed: of each row, (B,) integers, or the first row's, from which the others count up; by default one that
            PyTorch draws. What a row draws from its logits depends on its own seed alone.
        stop: a token, or several, that end a row. It has the same token at all later steps, with the log probability 0;
            after the step at which the last row ends there are no more.
        log_probabilities: also yield those of the tokens: (tokens, log probabilities (B,), float32), among all tokens
            whatever top_k and top_p. Those of an exact model are the numbers that `score` returns, to the bit; with
            temperature 0 they are 0.

    Raises:
        ValueError, TypeError: at the call, for an invalid or empty prompt or option, and a module that is no language
            model. When a token is requested, for logits that are not finite. On a GPU two checks would synchronise and
            are left to PyTorch: tokens outside the vocabulary, and NaN logits after the first token. They cause a
            device-side assertion; with temperature 0, NaN logits yield the NaN's index.

    Tokens that are less likely than 2^-40 of the likeliest are never drawn. All tokens are to be requested inside of
    `torch.inference_mode`, or all outside.

    Example:
        >>> import torch
        >>> from retrograd.nn import LanguageModel, MambaConfig, generate
        >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> len(list(generate(model, torch.tensor([[100, 101, 102]]), 5)))
        5
    """
    check_model("generate", model)
    _check_rows("generate", "prompt", prompt, model, padded=True)
    check_size("generate", "count", count, 0)
    sampling = Sampling(temperature, top_k, top_p)
    sampling.check("generate")
    first = prompt if isinstance(prompt, Tensor) else prompt[0]
    uniforms = Uniforms(seeds_of("generate", seed, len(prompt)), first.device)
    ends = stop_tokens("generate", stop, model.config)
    drawn = _generate(model, prompt, count, sampling, uniforms, ends, log_probabilities)
    if log_probabilities:
        return ((tokens, found) for tokens, found in drawn if found is not None)
    return (tokens for tokens, _ in drawn)


def _check_rows(where: str, argument: str, rows: Any, model: LanguageModel, *, padded: bool) -> None:
    """Raise unless rows are tokens (B, T), or a sequence of tokens (T,), with at least one token each, where the model
    is.
    """
    axes: tuple[str, ...]
    device = model.backbone.embedding.weight.device
    if isinstance(rows, Sequence) and len(rows):
        given, axes = {f"{argument}[{number}]": row for number, row in enumerate(rows)}, ("time",)
    elif isinstance(rows, Tensor):
        given, axes = {argument: rows}, ("batch", "time")
    else:
        raise bad_type(where, argument, rows, "a torch.Tensor, or a sequence of at least one")
    for name, tokens in given.items():
        check_tokens(where, tokens, axes, name)
        if tokens.shape[-1] < 1:
            raise bad_shape(where, name, tokens.shape, f"({', '.join((*axes[:-1], 'at least one token'))})")
        if tokens.device != device:
            raise bad_value(where, f"device of {name}", str(tokens.device), f"{device}, where the model is")
        if tokens.device.type == "cpu":
            check_vocabulary(where, tokens, model.config, name, padded=padded)


@overload
def score(model: LanguageModel, tokens: Tensor, *, temperature: float = ...) -> Float[Tensor, "B T-1"]: ...


@overload
def score(
    model: LanguageModel, tokens: Sequence[Tensor], *, temperature: float = ...
) -> list[Float[Tensor, " T-1"]]: ...


def score(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"] | Sequence[Int[Tensor, " T"]],
    *,
    temperature: float = 1.0,
) -> Tensor | list[Tensor]:
    """The log probability of each token but the first, given those before it, by the forward pass of training.

    Args:
        model: the model, whole or wrapped by `torch.compile`.
        tokens: (B, T), at least one token, each from 0 to below the vocabulary; or a sequence of B tensors (T,) of any
            lengths, which are computed as packed sequences.
        temperature: of the distribution, more than 0.

    Returns:
        (B, T - 1), float32, with a gradient for the model's parameters; for a sequence a list of B tensors (T - 1,).

    Raises:
        ValueError, TypeError: for invalid tokens, a temperature that is not positive, and a module that is no language
            model. Tokens outside the vocabulary are reported on a CPU only, where the check waits for nothing.

    Example:
        >>> import torch
        >>> from retrograd.nn import LanguageModel, MambaConfig, score
        >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> score(model, torch.tensor([[100, 101, 102]])).shape
        torch.Size([1, 2])
    """
    check_model("score", model)
    _check_rows("score", "tokens", tokens, model, padded=False)
    check_number("score", "temperature", temperature)
    if temperature == 0:
        raise bad_value("score", "temperature", temperature, "more than 0")
    if isinstance(tokens, Tensor):
        logits, following = model(tokens[:, :-1]), tokens[:, 1:].flatten()
    else:
        before, ends = _packed([row[:-1] for row in tokens])
        logits, following = model(before, cu_seqlens=ends), torch.cat([row[1:] for row in tokens])
    logits = logits[..., : model.config.vocab_size].flatten(0, 1)
    found = Sampling(temperature).log_probabilities(logits, following)
    if isinstance(tokens, Tensor):
        return found.view(len(tokens), tokens.shape[1] - 1)
    return list(found.split([len(row) - 1 for row in tokens]))


@torch.no_grad()
def _generate(
    model: LanguageModel,
    prompt: Tensor | Sequence[Tensor],
    count: int,
    sampling: Sampling,
    uniforms: Uniforms,
    stop: tuple[int, ...],
    log_probabilities: bool,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Tokens, with their log probabilities if asked for."""
    longest = prompt.shape[1] if isinstance(prompt, Tensor) else max(map(len, prompt))
    capacity = longest + min(count, ROOM)
    logits, state = _prefill(model, prompt, capacity)
    steps = Steps(model, state, logits, sampling, stop, log_probabilities=log_probabilities)
    finished: HostCopy | None = None
    for number in range(count):
        if number == 0:
            steps.draw(uniforms.at(number))
        else:
            if longest + number > capacity:
                capacity = min(longest + count, 2 * capacity)
                steps.grow(capacity)
            steps.advance(uniforms.at(number), count - number)
        if finished is not None and finished.values():  # of the step before, while this one runs
            return
        finished = HostCopy(steps.ended.all()) if stop else None
        drawn = steps.log_probabilities
        yield steps.tokens.clone(), None if drawn is None else drawn.clone()


def _prefill(model: LanguageModel, prompt: Tensor | Sequence[Tensor], capacity: int) -> tuple[Tensor, State]:
    """The logits after the last token of each row, and the state; rows of different lengths are packed."""
    if isinstance(prompt, Tensor):
        return model.prefill(prompt, capacity=capacity)
    tokens, ends = _packed(prompt)
    return model.prefill(tokens, capacity=capacity, cu_seqlens=ends)


def _packed(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows one after another, (1, T), and their boundaries."""
    ends = torch.tensor([0, *accumulate(len(row) for row in rows)], dtype=torch.int32)
    return torch.cat(list(rows))[None], ends.to(rows[0].device)
