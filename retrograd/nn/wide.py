"""The dtype of sums over many steps or layers."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """x in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
