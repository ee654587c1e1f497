"""Generation of tokens after a prompt, one by one, from a state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from retrograd.core.errors import bad_shape

from .checks import check_model, check_number, check_size, check_tokens, check_vocabulary
from .model import LanguageModel

# Tokens after the prompt for which a state has room at first: attention looks at all of it, and a step copies it.
ROOM = 1024


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
        model: the model, whole or wrapped by `torch.compile`.
        prompt: (B, T), at least one token, each from 0 to below the padded vocabulary.
        count: tokens to yield.
        temperature: of the distribution that tokens are drawn from; 0 takes the likeliest token.
        generator: of random numbers, on the model's device.

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
    check_number("generate", "temperature", temperature)
    return _generate(model, prompt, count, temperature, generator)


@torch.no_grad()
def _generate(
    model: LanguageModel, prompt: Tensor, count: int, temperature: float, generator: torch.Generator | None
) -> Iterator[Tensor]:
    batch, time = prompt.shape
    capacity = time + min(count, ROOM)
    features, state = model.backbone(prompt, model.initial_state(batch, capacity=capacity))
    logits = model.lm_head(features[:, -1])
    for number in range(count):
        logits = logits[:, : model.config.vocab_size]
        # On a GPU this synchronises, so only the first token is checked there; bad weights show in it.
        if (number == 0 or logits.device.type == "cpu") and not bool(logits.amax(-1).isfinite().all()):
            raise ValueError(f"generate: model has NaN or infinite logits for token {number}, expected finite numbers")
        yield (token := sample(logits, temperature, generator))
        if number + 1 < count:
            if time + number + 1 > capacity:
                capacity = min(time + count, 2 * capacity)
                state = model.grown(state, capacity)
            logits, state = model.step(token, state)


def sample(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Draw a token for each row."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float()
    # At most 0: divided by a small temperature it becomes -inf, never NaN.
    below = logits - logits.amax(-1, keepdim=True)
    probabilities = torch.softmax(below / max(temperature, torch.finfo(below.dtype).tiny), dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
