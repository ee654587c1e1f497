"""The definition of linear in plain PyTorch; all implementations are compared with it in float64."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `retrograd.linear`. Computes in the dtype of its inputs; differentiated by autograd."""
    return functional.linear(x, weight, bias)
