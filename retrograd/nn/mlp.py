"""The gated MLP of a block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from retrograd.models.generation import check_size

from .linear import Linear


class GatedMLP(nn.Module):
    """fc2(x * silu(gate)) with x, gate = fc1(u), without biases.

    Args:
        d_model: channels of input and output.
        channels: of x and of the gate.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: unless both are integers of at least 1.

    Source: Shazeer, GLU Variants Improve Transformer (2020), SwiGLU. Names, shapes and initialisation are those of
    state-spaces/mamba.

    Example:
        >>> import torch
        >>> from retrograd.nn import GatedMLP
        >>> GatedMLP(64, 128)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        d_model: int,
        channels: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("GatedMLP", "d_model", d_model)
        check_size("GatedMLP", "channels", channels)
        self.fc1 = Linear(d_model, 2 * channels, bias=False, device=device, dtype=dtype)
        self.fc2 = Linear(channels, d_model, bias=False, device=device, dtype=dtype)

    @torch.no_grad()
    def divide_output(self, by: float) -> None:
        """Divide the weight of the last projection, as `Mixer.divide_output`."""
        self.fc2.weight /= by

    def forward(self, u: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Each step by itself, u (..., d_model)."""
        x, gate = self.fc1(u).chunk(2, dim=-1)
        return self.fc2(x * F.silu(gate))
