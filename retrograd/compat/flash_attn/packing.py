"""Sequences of which only a part is used, as packed sequences of `retrograd.attention` with gaps between them."""

from __future__ import annotations

import torch
from torch import Tensor


def used_parts(
    bounds_q: Tensor, bounds_k: Tensor, used_q: Tensor | None, used_k: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Boundaries of three sequences for each one: what is used of it, its other queries, its other keys.

    Other queries see no key, so their results are 0, and no query sees the other keys.
    """
    first_q, last_q, first_k, last_k = bounds_q[:-1], bounds_q[1:], bounds_k[:-1], bounds_k[1:]
    middle_q = last_q if used_q is None else first_q + used_q.int()
    middle_k = last_k if used_k is None else first_k + used_k.int()
    own_q = torch.stack((first_q, middle_q, last_q), 1).flatten()
    own_k = torch.stack((first_k, middle_k, middle_k), 1).flatten()
    return torch.cat((own_q, bounds_q[-1:])), torch.cat((own_k, bounds_k[-1:]))


def of_parts(slopes: Tensor | None) -> Tensor | None:
    """Slopes of sequences as those of the parts of `used_parts`."""
    return slopes if slopes is None or slopes.ndim == 1 else slopes.repeat_interleave(3, 0)


def longest(bounds: Tensor) -> int:
    """The most steps of a sequence. The host waits for it."""
    return max(bounds.diff().tolist(), default=0)


def owners(bounds: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """For each step the number of its packed sequence, and its place there."""
    step = torch.arange(steps, device=bounds.device)
    owner = torch.bucketize(step, bounds[1:-1].long(), right=True)
    return owner, step - bounds[owner]
