"""Training in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrograd.distributed import SlotSum, Tree
from retrograd.nn import LanguageModel

from .learner import KEYS, Learner, Moments, check_moments, decays
from .presets import Preset
from .ranks import Ranks, total_of
from .settings import Settings


class TorchLearner(Learner):
    """Training in PyTorch."""

    def __init__(self, settings: Settings, ranks: Ranks = Ranks()) -> None:  # noqa: B008  # it is immutable
        self.settings, self.preset, self.ranks = settings, settings.preset, ranks
        self.slots = ranks.slots(settings.slots)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._model = LanguageModel(self.preset.model)  # on the CPU: a seed means the same on every device
        self._model.to(settings.device)
        self.optimizer = adamw(self._model, self.preset)
        self._forward = torch.compile(self._model) if settings.compile else self._model
        self._gradients = SlotSum(self._model.parameters(), self.slots)

    @property
    def model(self) -> LanguageModel:
        """The model that is trained."""
        return self._model

    def step(self, windows: np.ndarray, lr: float) -> Tensor:
        """See `Learner`."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        losses: Tree[Tensor] = Tree(Tensor.add_)
        size = len(windows) // self.slots.count
        for slot in self.slots.own:
            loss = self._loss(self._forward, windows[slot * size : (slot + 1) * size]) / self.slots.count
            loss.backward()
            self._gradients.take()
            losses.append(loss.detach())
        self.ranks.together(self._gradients.finish)
        nn.utils.clip_grad_norm_(self._model.parameters(), self.preset.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total_of(losses, self.ranks)

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


def adamw(model: LanguageModel, preset: Preset) -> torch.optim.AdamW:
    """AdamW, whose learning rate a step sets."""
    named = list(model.named_parameters())
    groups = [
        {"params": [(name, p) for name, p in named if decays(name, p.shape) == decayed], "weight_decay": weight_decay}
        for decayed, weight_decay in ((True, preset.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=preset.lr, betas=preset.betas, fused=True)
