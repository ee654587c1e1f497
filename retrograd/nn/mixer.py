"""What a block needs of the layer that mixes along time: Mamba's now, others by the same methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn


class Mixer(nn.Module, ABC):
    """A layer (B, T, d_model) -> (B, T, d_model), with a state that stands for all that came before."""

    @abstractmethod
    def initial_state(self, batch: int, dtype: torch.dtype | None = None) -> Any:
        """The state before the first step, of so many sequences."""

    @abstractmethod
    def divide_output(self, by: float) -> None:
        """Divide what the layer adds to the residual stream, once, when a model is initialised."""

    @abstractmethod
    def forward(self, u: Tensor, state: Any = None, *, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Any]:
        """All steps of a sequence from a state on, and the state after the last, None if none came in."""

    @abstractmethod
    def step(self, u: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step, u (B, d_model), and the state after it."""
