"""Arrays of gigabytes."""

from __future__ import annotations

import torch
from torch import Tensor

from retrograd.testing.draw import normal


def drawn(shape: tuple[int, ...], generator: torch.Generator, scale: float = 1.0) -> Tensor:
    """Normal numbers in bfloat16, drawn in parts, since fp32 needs twice the memory."""
    tensor = torch.empty(shape, dtype=torch.bfloat16, device=generator.device)
    for part in tensor.view(-1).split(2**28):
        part.copy_(normal(part.shape, generator) * scale)
    return tensor
