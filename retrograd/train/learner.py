"""What a framework does in training: a model and its optimiser, from windows of tokens to new parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from retrograd.nn import LanguageModel, MambaConfig

from .presets import Preset

KEYS = ("step", "exp_avg", "exp_avg_sq")
Moments = dict[str, Tensor]  # `<parameter>/<key>`: AdamW's arrays


class Learner(ABC):
    """A model and AdamW in one framework. Norms, biases, D and A_log do not decay."""

    preset: Preset

    @property
    def config(self) -> MambaConfig:
        """Of the model."""
        return self.preset.model

    @property
    @abstractmethod
    def model(self) -> LanguageModel:
        """The model; on the CPU, a copy, if the framework is not PyTorch."""

    def collect(self) -> None:
        """Make `model`, `loss` and `moments` those of now, in the first process; all processes call it."""
        return

    @abstractmethod
    def step(self, windows: np.ndarray, lr: float) -> Any:
        """One step on windows (B, T + 1); returns its loss in nats, still on the device."""

    @abstractmethod
    def numbers(self, losses: Sequence[Any]) -> list[float]:
        """The losses of steps; waits for the device."""

    @abstractmethod
    def loss(self, windows: np.ndarray) -> float:
        """The loss on windows, without a step."""

    @abstractmethod
    def moments(self) -> Moments:
        """The optimiser's arrays; none before the first step."""

    @abstractmethod
    def restore(self, model: LanguageModel, moments: Moments) -> None:
        """Go on from a model of the same config, and from what `moments` returned.

        Raises:
            ValueError: for arrays of other names or shapes.
        """


def decays(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter decays."""
    return len(shape) > 1 and not name.endswith("A_log")


def check_moments(moments: Moments, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless there are moments of exactly these parameters, or none at all."""
    expected = {f"{name}/{key}": () if key == "step" else shape for name, shape in shapes.items() for key in KEYS}
    if not moments:
        return
    for name in sorted(moments.keys() - expected.keys()):
        raise ValueError(f"the optimiser's {name} is of no parameter of this model")
    for name in sorted(expected.keys() - moments.keys()):
        raise ValueError(f"the optimiser's {name} is missing")
    for name, array in moments.items():
        if tuple(array.shape) != expected[name]:
            raise ValueError(f"the optimiser's {name} has shape {tuple(array.shape)}, expected {expected[name]}")
