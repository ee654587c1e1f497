"""Presets: the sizes of a model and of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from retrograd.nn import Mamba1Config, MambaConfig

BYTES = 256  # the vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model and its training.

    Attributes:
        model: sizes of the model.
        batch: windows of a step, B.
        time: bytes that a window predicts, T; it holds one more.
        steps: optimiser steps.
        lr: the highest learning rate.
        warmup: share of the steps in which the learning rate rises to `lr`; then it falls to zero along a cosine.
        betas, weight_decay: of AdamW; no decay for parameters of one dimension and for A_log.
        clip: the largest norm of the gradient.
        dtype: of activations, `float32` or `bfloat16`; parameters are float32.
        every: steps between two evaluations, each with a checkpoint.
        log_every: steps between two reads of the loss; each one waits for the device.
        eval_time: bytes that a held-out window predicts.
        eval_windows: held-out windows of an evaluation.
        final_windows: held-out windows of the last evaluation, in which the bigram model is evaluated too.
    """

    model: MambaConfig
    batch: int
    time: int
    steps: int
    lr: float
    warmup: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    dtype: str = "float32"
    every: int
    log_every: int = 1
    eval_time: int
    eval_windows: int = 32
    final_windows: int = 256

    def to_dict(self) -> dict[str, Any]:
        """A dict that JSON can hold."""
        return asdict(self) | {"model": self.model.to_dict(), "betas": list(self.betas)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Preset:
        """The inverse of `to_dict`."""
        return cls(**{**given, "model": MambaConfig.from_dict(given["model"]), "betas": tuple(given["betas"])})


PRESETS: Mapping[str, Preset] = {
    # Seconds on a laptop: for tests.
    "tiny": Preset(
        model=MambaConfig(d_model=16, n_layer=2, vocab_size=BYTES, ssm_cfg=Mamba1Config(d_state=4)),
        batch=4,
        time=32,
        steps=20,
        lr=1e-2,
        every=5,
        eval_time=32,
        eval_windows=4,
        final_windows=8,
    ),
    # Two to three minutes on two CPU cores; README.md has what was tried.
    "cpu": Preset(
        model=MambaConfig(d_model=128, n_layer=3, vocab_size=BYTES, ssm_cfg=Mamba1Config(d_state=4)),
        batch=16,
        time=128,
        steps=1000,
        lr=7e-3,
        every=100,
        eval_time=256,
    ),
    # Less than a minute on an H200; README.md has what was tried.
    "gpu": Preset(
        model=MambaConfig(d_model=768, n_layer=12, vocab_size=BYTES),
        batch=8,
        time=2048,
        steps=1000,
        lr=2e-3,
        weight_decay=0.3,  # the text is read about twice
        dtype="bfloat16",
        every=100,
        eval_time=2048,
        log_every=10,
    ),
}


def preset(name: str) -> Preset:
    """A preset by name.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}, expected {' or '.join(PRESETS)}")
    return PRESETS[name]
