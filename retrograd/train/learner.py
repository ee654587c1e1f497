"""What a framework does in training: a model and its optimiser, from windows of tokens to new parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrograd.core.errors import missing
from retrograd.nn import LanguageModel, MambaConfig

from .presets import Preset
from .settings import Settings

Moments = dict[str, Tensor]  # `<parameter>/<array>`: step, exp_avg and exp_avg_sq of AdamW


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


def learner_of(settings: Settings) -> Learner:
    """A learner with the parameters that the settings' seed draws."""
    if settings.framework == "torch":
        return TorchLearner(settings)
    for module in ("jax", "optax"):
        if find_spec(module) is None:
            raise missing("retrograd train --framework jax", module)
    from .jax_learner import JaxLearner

    return JaxLearner(settings)


def decays(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter decays."""
    return len(shape) > 1 and not name.endswith("A_log")


class TorchLearner(Learner):
    """Training in PyTorch."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.preset = settings, settings.preset
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._model = LanguageModel(self.preset.model)  # on the CPU: a seed means the same on every device
        self._model.to(settings.device)
        self.optimizer = adamw(self._model, self.preset)
        self._forward = torch.compile(self._model) if settings.compile else self._model

    @property
    def model(self) -> LanguageModel:
        """The model that is trained."""
        return self._model

    def step(self, windows: np.ndarray, lr: float) -> Tensor:
        """See `Learner`."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self._loss(self._forward, windows)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), self.preset.clip)
        self.optimizer.step()
        return loss.detach()

    def numbers(self, losses: Sequence[Tensor]) -> list[float]:
        """See `Learner`."""
        values: list[float] = torch.stack(list(losses)).tolist()
        return values

    @torch.no_grad()
    def loss(self, windows: np.ndarray) -> float:
        """See `Learner`."""
        return self._loss(self._model, windows).item()

    def _loss(self, model: Callable[[Tensor], Tensor], windows: np.ndarray) -> Tensor:
        device, dtype = self.settings.device, getattr(torch, self.preset.dtype)
        tokens = torch.from_numpy(windows).to(device)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    def moments(self) -> Moments:
        """See `Learner`."""
        packed = self.optimizer.state_dict()
        return {
            f"{name}/{key}": value.contiguous()
            for group in packed["param_groups"]
            for number, name in zip(group["params"], group["param_names"], strict=True)
            for key, value in packed["state"].get(number, {}).items()
        }

    def restore(self, model: LanguageModel, moments: Moments) -> None:
        """See `Learner`."""
        self._model.load_state_dict(model.state_dict())
        check_moments(moments, {name: tuple(p.shape) for name, p in self._model.named_parameters()})
        packed = self.optimizer.state_dict()
        packed["state"] = {
            number: {key: moments[f"{name}/{key}"] for key in KEYS}
            for group in packed["param_groups"]
            for number, name in zip(group["params"], group["param_names"], strict=True)
            if moments
        }
        if moments:
            self.optimizer.load_state_dict(packed)


KEYS = ("step", "exp_avg", "exp_avg_sq")


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


def adamw(model: LanguageModel, preset: Preset) -> torch.optim.AdamW:
    """AdamW, whose learning rate a step sets."""
    named = list(model.named_parameters())
    groups = [
        {"params": [(name, p) for name, p in named if decays(name, p.shape) == decayed], "weight_decay": weight_decay}
        for decayed, weight_decay in ((True, preset.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=preset.lr, betas=preset.betas, fused=True)
