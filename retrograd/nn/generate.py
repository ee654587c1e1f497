"""Text after a prompt, token by token, with a state of constant size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from retrograd.core.errors import bad_shape

from .checks import check_model, check_number, check_size, check_tokens, check_vocabulary
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
        model: the model, whole or wrapped by `torch.compile`.
        prompt: (B, T), at least one token, each from 0 to below the padded vocabulary.
        count: how many to yield.
        temperature: of the distribution that tokens are drawn from; 0 takes the likeliest.
        generator: of random numbers, on the model's device.

    Raises:
        ValueError, TypeError: at the call, for a prompt that is not such or is empty, a negative count or temperature,
            and another module. When a token is asked for, where the model's logits are not numbers. On a GPU, where to
            look would be to wait, both tokens outside the vocabulary and logits that turn to NaN after the first token
            are left to PyTorch: a device-side assertion, and with temperature 0 the NaN's own number.

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
    features, state = model.backbone(prompt, model.initial_state(prompt.shape[0]))
    logits = model.lm_head(features[:, -1])
    for number in range(count):
        logits = logits[:, : model.config.vocab_size]
        # Once on a GPU, where it has to be waited for; bad weights show at once.
        if (number == 0 or logits.device.type == "cpu") and not bool(logits.amax(-1).isfinite().all()):
            raise ValueError(f"generate: model has NaN or infinite logits for token {number}, expected finite numbers")
        yield (token := sample(logits, temperature, generator))
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
