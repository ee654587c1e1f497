"""Functions of gates, whose bits depend on their argument alone.

On a CPU, PyTorch's softplus and sigmoid compute the elements after the last whole vector differently, so that a row's
last bit would depend on its batch. exp, log1p and arithmetic do not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); its derivative at 0 is 1/2, though abs has none."""
    if not x.is_cpu:
        return F.softplus(x)
    return (x + x.abs()) / 2 + torch.log1p(torch.exp(-x.abs()))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), in a form whose gradient is finite everywhere."""
    return torch.exp(-softplus(-x)) if x.is_cpu else torch.sigmoid(x)
