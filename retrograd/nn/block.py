"""A layer of the model: addition to the residual stream, norm, mixer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .mixer import Mixer
from .norm import RMSNorm
from .wide import wide


class Block(nn.Module):
    """Addition, norm, mixer, in this order, so that the addition is fused into the norm.

    A mixer's output is added to the stream by the next block; `Backbone` adds the last block's in its own norm.

    Args:
        norm: the norm of the stream.
        mixer: the layer that mixes along time, see `Mixer`.
        residual_in_fp32: whether the stream is float32.

    Example:
        >>> import torch
        >>> from retrograd.nn import Block, Mamba, RMSNorm
        >>> block = Block(RMSNorm(64), Mamba(64))
        >>> x, stream, _ = block(torch.randn(2, 10, 64), None)
        >>> (x + stream).shape
        torch.Size([2, 10, 64])
    """

    def __init__(self, norm: RMSNorm, mixer: Mixer, *, residual_in_fp32: bool = True) -> None:
        super().__init__()
        self.norm = norm
        self.mixer = mixer
        self.residual_in_fp32 = residual_in_fp32

    def forward(
        self, x: Tensor, stream: Tensor | None, state: Any = None, *, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Any]:
        """x (B, T, d_model) and the stream (None before the first block) -> (out, stream, state)."""
        h, stream = self._add_and_norm(x, stream)
        out, state = self.mixer(h, state, cu_seqlens=cu_seqlens)
        return out, stream, state

    def step(self, x: Tensor, stream: Tensor | None, state: Any) -> tuple[Tensor, Tensor, Any]:
        """The same for one step, x (B, d_model)."""
        h, stream = self._add_and_norm(x, stream)
        out, state = self.mixer.step(h, state)
        return out, stream, state

    def _add_and_norm(self, x: Tensor, stream: Tensor | None) -> tuple[Tensor, Tensor]:
        if stream is not None:
            return self.norm(x, stream)
        return self.norm(x), wide(x) if self.residual_in_fp32 else x
