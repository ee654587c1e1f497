"""The interface of the layer in a block that mixes along time, such as `Mamba`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Start(NamedTuple):
    """In place of a state: sequences without a step so far, of at most `capacity` steps, if that matters."""

    sequences: int
    capacity: int | None = None


class Mixer(nn.Module, ABC):
    """A layer (B, T, d_model) -> (B, T, d_model), with a state that represents all earlier steps.

    Attributes:
        exact: whether steps from a state have the bits of the whole sequence, if the projections are exact, too. None
            is where it costs little, see `LanguageModel`.
    """

    exact: bool | None = False

    @abstractmethod
    def initial_state(self, batch: int, dtype: torch.dtype | None = None, *, capacity: int | None = None) -> Any:
        """The state before the first step, for `batch` sequences of at most `capacity` steps, if that matters."""

    def grown(self, state: Any, capacity: int) -> Any:
        """The same state for sequences of at most `capacity` steps."""
        return state

    @abstractmethod
    def divide_output(self, by: float) -> None:
        """Divide the layer's contribution to the residual stream; called once, when a model is initialised."""

    @abstractmethod
    def forward(self, u: Tensor, state: Any = None, *, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Any]:
        """All steps of a sequence after `state`, and the state after the last step, None if `state` is None.

        A layer for models whose steps are divided over processes takes `context`, too, as `Mamba` does.
        """

    def begin(self, u: Tensor, start: Start, *, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Any]:
        """All steps of sequences from their first, and the state after them: as `forward` from `initial_state`.

        A layer may have a way with less work: neither are there zeros to make nor earlier steps to go on from.
        """
        return self(u, self.initial_state(start.sequences, capacity=start.capacity), cu_seqlens=cu_seqlens)

    @abstractmethod
    def step(self, u: Tensor, state: Any, *, in_place: bool = False) -> tuple[Tensor, Any]:
        """One step, u (B, d_model), and the state after it.

        `generate` takes steps in place: `state` may then be overwritten, and is not used again. It needs states of
        tensors, None, and sequences of these, whose shapes do not change. On a GPU it captures a step in a CUDA graph,
        so that Python code in a step, forward hooks included, does not run for each token, and may not wait for the
        GPU.
        """
