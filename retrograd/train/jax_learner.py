"""Training in JAX, with optax's AdamW; checkpoints have the form of PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array

from retrograd.jax import nn
from retrograd.nn import LanguageModel

from .learner import Learner, Moments, check_moments, decays
from .presets import Preset
from .settings import Settings

Params = dict[str, Array]
PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}


class Progress(NamedTuple):
    """What a step changes."""

    params: Params
    adam: optax.ScaleByAdamState


class JaxLearner(Learner):
    """Training in JAX."""

    def __init__(self, settings: Settings) -> None:
        self.preset = preset = settings.preset
        self.device = jax.devices(PLATFORMS[settings.device])[0]
        with jax.default_device(jax.devices("cpu")[0]):  # so that a seed means the same on every device
            params = nn.init(jax.random.key(settings.seed), preset.model)
        self.progress = self._started(params)

    def _started(self, params: Mapping[str, Array]) -> Progress:
        own = {name: jax.device_put(array, self.device) for name, array in params.items()}
        return Progress(own, adam(self.preset).init(own))

    @property
    def model(self) -> LanguageModel:
        """A copy in PyTorch."""
        return nn.to_torch(self.progress.params, self.preset.model)

    def step(self, windows: np.ndarray, lr: float) -> Array:
        """See `Learner`."""
        tokens = jax.device_put(windows.astype(np.int32), self.device)
        self.progress, loss = _step(self.progress, self.preset, tokens, jnp.float32(lr))
        return loss

    def numbers(self, losses: Sequence[Array]) -> list[float]:
        """See `Learner`."""
        return [float(loss) for loss in losses]

    def loss(self, windows: np.ndarray) -> float:
        """See `Learner`."""
        tokens = jax.device_put(windows.astype(np.int32), self.device)
        return float(_loss(self.progress.params, self.preset, tokens))

    def moments(self) -> Moments:
        """See `Learner`."""
        adam = self.progress.adam
        if not int(adam.count):
            return {}
        count, moments = float(adam.count), Moments()
        for name in self.progress.params:
            moments[f"{name}/step"] = torch.tensor(count)
            for key, values in (("exp_avg", adam.mu), ("exp_avg_sq", adam.nu)):
                moments[f"{name}/{key}"] = torch.from_numpy(np.array(values[name]))
        return moments

    def restore(self, model: LanguageModel, moments: Moments) -> None:
        """See `Learner`."""
        params, adam = self._started(nn.from_torch(model))
        check_moments(moments, {name: array.shape for name, array in params.items()})
        if moments:
            count = jnp.int32(int(moments[f"{next(iter(params))}/step"].item()))
            mu, nu = (
                {name: jax.device_put(moments[f"{name}/{key}"].numpy(), self.device) for name in params}
                for key in ("exp_avg", "exp_avg_sq")
            )
            adam = optax.ScaleByAdamState(count, mu, nu)
        self.progress = Progress(params, adam)


def adam(preset: Preset) -> optax.GradientTransformation:
    """Adam's direction, from clipped gradients."""
    return optax.scale_by_adam(*preset.betas, eps=1e-8)


@partial(jax.jit, static_argnums=1)
def _loss(params: Params, preset: Preset, tokens: Array) -> Array:
    logits = nn.language_model(params, preset.model, tokens[:, :-1], dtype=preset.dtype).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@partial(jax.jit, static_argnums=1, donate_argnums=0)
def _step(progress: Progress, preset: Preset, tokens: Array, lr: Array) -> tuple[Progress, Array]:
    params = progress.params
    loss, gradients = jax.value_and_grad(_loss)(params, preset, tokens)
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by counts
        clipped, _ = optax.clip_by_global_norm(preset.clip).update(gradients, optax.EmptyState())
        directions, adam_state = adam(preset).update(clipped, progress.adam, params)
    rate = {name: preset.weight_decay * decays(name, p.shape) for name, p in params.items()}
    after = {name: p - lr * (directions[name] + rate[name] * p) for name, p in params.items()}
    return Progress(after, adam_state), loss
