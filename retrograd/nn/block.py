"""A layer of the model: addition to the residual stream, norm, mixer, and an MLP if there is one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from retrograd.core.errors import bad_value
from retrograd.core.torch.context import Context

from .checks import check_context
from .mixer import Mixer, Start
from .mlp import GatedMLP
from .norm import RMSNorm
from .wide import wide


class Block(nn.Module):
    """Addition, norm, mixer, and then the same with an MLP; in this order, so that additions are fused into norms.

    The last output is added to the stream by the next block; `Backbone` adds the last block's in its own norm.

    Args:
        norm: the norm of the stream before the mixer.
        mixer: the layer that mixes along time, see `Mixer`.
        norm2, mlp: the norm before an MLP, and the MLP; both or neither.
        residual_in_fp32: whether the stream is float32.

    Raises:
        ValueError: for one of norm2 and mlp without the other.

    Example:
        >>> import torch
        >>> from retrograd.nn import Block, GatedMLP, Mamba, RMSNorm
        >>> block = Block(RMSNorm(64), Mamba(64), RMSNorm(64), GatedMLP(64, 128))
        >>> x, stream, _ = block(torch.randn(2, 10, 64), None)
        >>> (x + stream).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        norm: RMSNorm,
        mixer: Mixer,
        norm2: RMSNorm | None = None,
        mlp: GatedMLP | None = None,
        *,
        residual_in_fp32: bool = True,
    ) -> None:
        super().__init__()
        if (norm2 is None) != (mlp is None):
            missing, given = ("norm2", "mlp") if norm2 is None else ("mlp", "norm2")
            raise bad_value("Block", missing, None, f"a module, since {given} is given")
        self.norm = norm
        self.mixer = mixer
        self.norm2 = norm2
        self.mlp = mlp
        self.residual_in_fp32 = residual_in_fp32

    def forward(
        self,
        x: Tensor,
        stream: Tensor | None,
        state: Any = None,
        *,
        cu_seqlens: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, Tensor, Any]:
        """x (B, T, d_model) and the stream (None before the first block) -> (out, stream, state).

        A `Start` in place of a state begins sequences.
        """
        check_context("Block", context, state, cu_seqlens)
        h, stream = self._add_and_norm(x, stream)
        run = self.mixer.begin if isinstance(state, Start) else self.mixer
        divided = {} if context is None else {"context": context}  # which not every mixer takes
        out, state = run(h, state, cu_seqlens=cu_seqlens, **divided)
        return *self._feed_forward(out, stream), state

    def step(
        self, x: Tensor, stream: Tensor | None, state: Any, *, in_place: bool = False
    ) -> tuple[Tensor, Tensor, Any]:
        """The same for one step, x (B, d_model)."""
        h, stream = self._add_and_norm(x, stream)
        out, state = self.mixer.step(h, state, in_place=in_place)
        return *self._feed_forward(out, stream), state

    def divide_output(self, by: float) -> None:
        """Divide what the block adds to the stream; called once, when a model is initialised."""
        self.mixer.divide_output(by)
        if self.mlp is not None:
            self.mlp.divide_output(by)

    def _feed_forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        if self.norm2 is None or self.mlp is None:
            return x, stream
        h, stream = self.norm2(x, stream)
        return self.mlp(h), stream

    def _add_and_norm(self, x: Tensor, stream: Tensor | None) -> tuple[Tensor, Tensor]:
        if stream is not None:
            return self.norm(x, stream)
        stream = wide(x) if self.residual_in_fp32 else x
        return self.norm(x), stream.clone() if stream is x else stream  # FSDP2 warns of an output that is its input
