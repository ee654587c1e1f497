"""Text after a prompt, token by token, with a state of constant size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from .model import LanguageModel


@torch.no_grad()
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
        ValueError: for an empty prompt or a negative temperature.

    Example:
        >>> import torch
        >>> from retrograd.nn import LanguageModel, MambaConfig, generate
        >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> len(list(generate(model, torch.tensor([[100, 101, 102]]), 5)))
        5
    """
    if prompt.dim() != 2 or prompt.shape[1] < 1:
        raise ValueError(f"generate: prompt has shape {tuple(prompt.shape)}, expected (batch, at least one token)")
    if temperature < 0:
        raise ValueError(f"generate: temperature is {temperature}, expected 0 or more")
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
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
