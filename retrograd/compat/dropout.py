"""Dropout of `retrograd.attention` with a seed from PyTorch's generator, which checkpointing puts back."""

from __future__ import annotations

from typing import Any

import torch

SEEDS = 2**31 - 1  # how many there are to draw from


def dropout_options(dropout_p: float, device: torch.device) -> dict[str, Any]:
    """The share that is dropped, and where it is not 0 a seed from PyTorch's generator of the device."""
    if not dropout_p:
        return {"dropout_p": dropout_p}
    return {"dropout_p": dropout_p, "dropout_seed": torch.randint(SEEDS, (), dtype=torch.int32, device=device)}
