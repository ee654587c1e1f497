"""Text after a prompt, token by token, with a state of constant size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from retrograd.core.errors import bad_shape, bad_value

from .checks import check_tokens
from .model import LanguageModel


def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "B T"],
    count: int,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Iterator[Int[Tensor, " B"]]:
    """Yield the tokens that follow a prompt, each as soon as it is known.

    Args:
        model: the model.
        prompt: (B, T), at least one token.
        count: how many to yield.
        temperature: of the distribution that tokens are drawn from; 0 takes the likeliest.
        generator: of random numbers, on the model's device.

    Raises:
        ValueError, TypeError: at the call, for a prompt that is not such or is empty, and a negative temperature.

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
    if not temperature >= 0:
        raise bad_value("generate", "temperature", temperature, "0 or more")
    return _generate(model, prompt, count, temperature, generator)


@torch.no_grad()
def _generate(
    model: LanguageModel, prompt: Tensor, count: int, temperature: float, generator: torch.Generator | None
) -> Iterator[Tensor]:
    features, state = model.backbone(prompt, model.initial_state(prompt.shape[0]))
    logits = model.lm_head(features[:, -1])
    for number in range(count):
        token = sample(logits[:, : model.config.vocab_size], temperature, generator)
        yield token
        if number + 1 < count:
            logits, state = model.step(token, state)


def sample(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """A token of each row."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float()
    below = logits - logits.amax(-1, keepdim=True)  # at most 0: a small temperature makes -inf of it, never NaN
    probabilities = torch.softmax(below / max(temperature, torch.finfo(below.dtype).tiny), dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
