"""Training in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrograd.core.forgetting import STEP
from retrograd.distributed import ContextParallel, Layout, SlotSum, Tree
from retrograd.nn import LanguageModel

from .learner import KEYS, Learner, Moments, check_moments, decays
from .presets import Preset
from .ranks import Ranks, total_of
from .settings import Settings


class TorchLearner(Learner):
    """Training in PyTorch."""

    def __init__(self, settings: Settings, ranks: Ranks = Ranks()) -> None:  # noqa: B008  # it is immutable
        self.settings, self.preset, self.ranks = settings, settings.preset, ranks
        parts = settings.context_parallel
        self.slots = ranks.slots(settings.slots, parts)  # or parts of them
        self.context = None if parts == 1 else context_of(self.preset.time, ranks, parts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._model = LanguageModel(self.preset.model)  # on the CPU: a seed means the same on every device
        self._place()
        self.optimizer = adamw(self._model, self.preset)
        self._forward = torch.compile(self._model) if settings.compile else self._model

    def _place(self) -> None:
        """Take the model to its device, and prepare the sum of gradients."""
        self._model.to(self.settings.device)
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
        size = len(windows) // self.settings.slots
        for place in self.slots.own:
            slot = place % self.settings.slots
            losses.append(self.ranks.between(partial(self._slot, windows[slot * size : (slot + 1) * size])))
            self._take()
        self._finish()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total_of(losses, self.ranks)

    def _take(self) -> None:
        """Take the gradients of a slot."""
        self._gradients.take()

    def _finish(self) -> None:
        """Give the parameters their gradients of the batch, clipped."""
        self.ranks.together(self._gradients.finish)
        nn.utils.clip_grad_norm_(self._model.parameters(), self.preset.clip)

    def _slot(self, windows: np.ndarray) -> Tensor:
        """Compute the gradients of a slot, or of this process's part of it; returns the loss."""
        loss = self._loss(self._forward, windows, self.context) / self.settings.slots
        loss.backward()
        return loss.detach()

    def numbers(self, losses: Sequence[Tensor]) -> list[float]:
        """See `Learner`."""
        values: list[float] = torch.stack(list(losses)).tolist()
        return values

    def loss(self, windows: np.ndarray) -> float:
        """See `Learner`."""
        return self._evaluated(self._model, windows)

    @torch.no_grad()
    def _evaluated(self, model: LanguageModel, windows: np.ndarray) -> float:
        return self._loss(model, windows).item()

    def _loss(
        self, model: Callable[..., Tensor], windows: np.ndarray, context: ContextParallel | None = None
    ) -> Tensor:
        device, dtype = self.settings.device, getattr(torch, self.preset.dtype)
        tokens = torch.from_numpy(windows).to(device)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            if context is None:
                return F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
            logits = model(context.shard(tokens[:, :-1]), context=context)
        following = context.shard(tokens[:, 1:])
        total = F.cross_entropy(logits.float().flatten(0, 1), following.flatten(), reduction="sum")
        return total / tokens[:, 1:].numel()

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
        self._restore_moments(moments)

    def _restore_moments(self, moments: Moments) -> None:
        packed = self.optimizer.state_dict()
        packed["state"] = {
            number: {key: moments[f"{name}/{key}"] for key in KEYS}
            for group in packed["param_groups"]
            for number, name in zip(group["params"], group["param_names"], strict=True)
            if moments
        }
        if moments:
            self.optimizer.load_state_dict(packed)


def context_of(time: int, ranks: Ranks, parts: int) -> ContextParallel:
    """The steps of this process, of sequences over `parts` processes."""
    part = ranks.rank // (ranks.world // parts)
    layout = Layout.even(time, parts, part, step=STEP if time >= parts * STEP else 1)
    return ContextParallel(layout, ranks.beside(parts), order="ranks")


def adamw(model: LanguageModel, preset: Preset) -> torch.optim.AdamW:
    """AdamW, whose learning rate a step sets."""
    named = list(model.named_parameters())
    groups = [
        {"params": [(name, p) for name, p in named if decays(name, p.shape) == decayed], "weight_decay": weight_decay}
        for decayed, weight_decay in ((True, preset.weight_decay), (False, 0.0))
    ]
    fused = named[0][1].is_cuda  # on a CPU the last few values of an array, or of a shard, are rounded otherwise
    return torch.optim.AdamW(groups, lr=preset.lr, betas=preset.betas, fused=fused)
