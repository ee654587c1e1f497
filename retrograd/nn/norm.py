"""RMSNorm as a module."""

from __future__ import annotations

from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

import retrograd
from retrograd.models.generation import check_number, check_size


class RMSNorm(nn.Module):
    """Root-mean-square normalisation of the last dimension, with an optional fused residual addition before it.

    Args:
        d: length of the last dimension.
        eps: added to the mean of squares.
        device: of the weight.
        dtype: of the weight.

    Attributes:
        weight: (d,), initially ones.

    Raises:
        ValueError, TypeError: unless d is an integer of at least 1 and eps a number of at least 0.

    Example:
        >>> import torch
        >>> from retrograd.nn import RMSNorm
        >>> norm = RMSNorm(64)
        >>> norm(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> y, stream = norm(torch.randn(2, 10, 64), torch.zeros(2, 10, 64))
    """

    def __init__(
        self,
        d: int,
        eps: float = 1e-5,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("RMSNorm", "d", d)
        check_number("RMSNorm", "eps", eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d, device=device, dtype=dtype))

    @overload
    def forward(self, x: Tensor, residual: None = None) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, x: Float[Tensor, "*batch d"], residual: Float[Tensor, "*batch d"] | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The norm of x; with a residual, (the norm of x + residual, that sum).

        Args:
            x: (..., d).
            residual: (..., d); a float32 residual with a 16-bit x keeps the sum in float32.
        """
        if residual is None:
            return retrograd.rms_norm(x, self.weight, eps=self.eps)
        return retrograd.rms_norm(x, self.weight, residual=residual, eps=self.eps, prenorm=True)

    def extra_repr(self) -> str:
        """For `print`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
