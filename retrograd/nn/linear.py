"""Linear layers whose products may have the same bits in any number of rows."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

import retrograd


class Linear(nn.Linear):
    """`torch.nn.Linear`, with `retrograd.linear` where it is exact.

    Attributes:
        exact: whether a row has the same bits in any number of rows, as a step of generation then has those of
            training; if not, products are PyTorch's own.

    Example:
        >>> import torch
        >>> from retrograd.nn import Linear
        >>> layer = Linear(64, 32)
        >>> layer.exact = True
        >>> x = torch.randn(10, 64)
        >>> torch.equal(layer(x)[3], layer(x[3]))
        True
    """

    exact: bool = False

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same, with another bias or none."""
        return (retrograd.linear if self.exact else F.linear)(x, self.weight, bias)
