"""Draws tokens from logits, each row by a seed of its own: what it draws does not depend on the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.models.generation import SamplingOptions

MOST_SEEDS = 2**63
BLOCK = 256  # uniform numbers of a row that are drawn at a time
WHOLE = 2.0**40  # the weight of the likeliest token; those of 2^23 tokens add up in 64 bits
ALIGNED = 4  # float32 numbers in 16 bytes
NO_TOKEN = -1  # to which an embedding on a GPU objects


class Sampling(SamplingOptions):
    """How a token is drawn from logits."""

    __slots__ = ()

    def scaled(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Logits over the temperature, less the largest of a row, in float32."""
        logits = logits.float()
        below = logits - logits.amax(-1, keepdim=True)
        # Neither the temperature nor one over it is 0 or infinite in float32: else 0 or -inf would become NaN.
        tiny = torch.finfo(below.dtype).tiny
        return below / min(max(self.temperature, tiny), 1 / tiny)

    def log_probabilities(self, logits: Float[Tensor, "B V"], tokens: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Of a token for each row, among all tokens: without top_k and top_p. With temperature 0 they are 0."""
        if self.temperature == 0:
            return torch.zeros(len(logits), device=logits.device)
        # PyTorch's kernels add in an order that depends on where a row begins: all begin at a multiple of 16 bytes.
        aligned = F.pad(self.scaled(logits), (0, -logits.shape[-1] % ALIGNED), value=-torch.inf)
        return torch.log_softmax(aligned, dim=-1).gather(-1, tokens.long()[:, None])[:, 0]

    def draw(self, logits: Float[Tensor, "B V"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
        """A token for each row, where its share of the probabilities, added up in order, passes a uniform number.

        NO_TOKEN where the largest logit is not finite, unless the temperature is 0.
        """
        if self.temperature == 0:
            return logits.argmax(-1)
        # In integers, whose sums have the same bits in any order: on a GPU the order may depend on the number of rows.
        weights = (self.scaled(logits).exp().double() * WHOLE).long().clamp_(min=0)  # NaN becomes negative
        if self.top_k is None and self.top_p == 1:
            place, found = _where_passed(weights, uniform)
            return place.masked_fill(~found, NO_TOKEN)
        order = logits.sort(dim=-1, descending=True, stable=True).indices  # weights are alike at a high temperature
        likeliest = weights.gather(-1, order)
        sums = likeliest.cumsum(-1)
        kept = ((sums - likeliest).double() < self.top_p * sums[:, -1:].double()) | (self.top_p == 1)
        if self.top_k is not None:
            kept[:, self.top_k :] = False
        place, found = _where_passed(likeliest * kept, uniform)
        return order.gather(-1, place[:, None])[:, 0].masked_fill(~found, NO_TOKEN)


def _where_passed(
    weights: Int[Tensor, "B V"], uniform: Float[Tensor, " B"]
) -> tuple[Int[Tensor, " B"], Bool[Tensor, " B"]]:
    """The first index at which the sum of a row's weights passes the share `uniform`, from 0 to below 1, of all.

    And whether there is one: if all weights are 0 there is not, and the index is 0.
    """
    sums = weights.cumsum(-1)
    total = sums[:, -1:]
    passed = torch.minimum((uniform[:, None] * total.double()).long(), total - 1)
    return torch.searchsorted(sums, passed, right=True)[:, 0], total[:, 0] > 0


class Uniforms:
    """Uniform numbers from 0 to below 1, a sequence for each seed."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.generators = [Random(seed) for seed in seeds]  # PyTorch's on a CPU look at 32 bits of a seed alone
        self.device = device
        self.block = torch.empty(len(seeds), 0)

    def at(self, number: int) -> Float[Tensor, " B"]:
        """The number-th of each sequence; numbers are asked for in order, beginning with 0."""
        if number % BLOCK == 0:
            rows = [[own.random() for own in self.generators] for _ in range(BLOCK)]
            self.block = torch.tensor(rows, dtype=torch.float64).to(self.device)
        return self.block[number % BLOCK]


def seeds_of(where: str, seed: Any, batch: int) -> list[int]:
    """The seed of each row.

    Args:
        where: the function, in errors.
        seed: (B,) integers; or the first row's, from which the others count up; or None for one that PyTorch draws.
        batch: rows, B.
    """
    if seed is None:
        seed = int(torch.randint(MOST_SEEDS - 1, ()))
    others = isinstance(seed, Tensor) and (seed.is_floating_point() or seed.is_complex() or seed.dtype == torch.bool)
    if isinstance(seed, Tensor) and seed.ndim and not others:
        if seed.shape != (batch,):
            raise bad_shape(where, "seed", seed.shape, f"(batch={batch},)")
        found = seed.tolist()
    elif isinstance(seed, int) and not isinstance(seed, bool):
        found = [(seed + row) % MOST_SEEDS for row in range(batch)] if seed >= 0 else [seed]
    else:
        raise bad_type(where, "seed", seed, "an integer, a tensor of integers, or None")
    for one in found:
        if not 0 <= one < MOST_SEEDS:
            raise bad_value(where, "seed", one, "numbers from 0 to 2^63 - 1")
    return found
