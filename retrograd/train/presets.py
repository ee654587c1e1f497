"""Presets: the sizes of a model and of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba1Config, Mamba2Config

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


def models(
    d_model: int, layers: Mapping[str, int], mamba: Mamba1Config, mamba2: Mamba2Config, heads: int, mlp: int
) -> dict[str, MambaConfig]:
    """Architecture -> a model of about the same time a step; `layers`: of each.

    Without a state-space model beside it, attention has a short convolution over q, k and v, as these have one.
    """
    attention = AttentionConfig(heads, rotary_emb_dim=d_model // heads, qkv_proj_bias=False, out_proj_bias=False)
    alone = replace(attention, d_conv=4)
    own = {name: MambaConfig(d_model=d_model, n_layer=count, vocab_size=BYTES) for name, count in layers.items()}
    every, middle = tuple(range(layers["transformer"])), (layers["hybrid"] // 2,)
    return {
        "mamba": replace(own["mamba"], ssm_cfg=mamba),
        "mamba2": replace(own["mamba2"], ssm_cfg=mamba2),
        "transformer": replace(own["transformer"], attn_cfg=alone, attn_layer_idx=every, d_intermediate=mlp),
        "hybrid": replace(own["hybrid"], ssm_cfg=mamba2, attn_cfg=attention, attn_layer_idx=middle),
    }


# Preset -> architecture -> sizes. README.md has what was tried.
MODELS: Mapping[str, Mapping[str, MambaConfig]] = {
    "tiny": models(
        d_model=16,
        layers={"mamba": 2, "mamba2": 2, "transformer": 2, "hybrid": 3},
        mamba=Mamba1Config(d_state=4),
        mamba2=Mamba2Config(d_state=4, headdim=8),
        heads=2,
        mlp=32,
    ),
    "cpu": models(
        d_model=128,
        layers={"mamba": 3, "mamba2": 3, "transformer": 4, "hybrid": 4},
        mamba=Mamba1Config(d_state=4),
        mamba2=Mamba2Config(d_state=32, headdim=32),
        heads=4,
        mlp=256,
    ),
    "gpu": models(
        d_model=768,
        layers={"mamba": 12, "mamba2": 12, "transformer": 8, "hybrid": 12},
        mamba=Mamba1Config(),
        mamba2=Mamba2Config(),
        heads=12,
        mlp=2048,
    ),
}
ARCHITECTURES = tuple(MODELS["tiny"])
DEFAULT = "hybrid"

# Preset -> architecture -> the highest learning rate, where it is not the preset's. README.md has what was tried.
LEARNING_RATES: Mapping[str, Mapping[str, float]] = {
    "cpu": {"transformer": 1.2e-3},
    "gpu": {"transformer": 1e-3},
}

PRESETS: Mapping[str, Preset] = {  # of the default architecture
    # Seconds on a laptop: for tests.
    "tiny": Preset(
        model=MODELS["tiny"][DEFAULT],
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
        model=MODELS["cpu"][DEFAULT],
        batch=8,
        time=128,
        steps=1500,
        lr=5e-3,
        every=150,
        eval_time=256,
    ),
    # Less than a minute on an H100; README.md has what was tried.
    "gpu": Preset(
        model=MODELS["gpu"][DEFAULT],
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


def preset(name: str, arch: str = DEFAULT) -> Preset:
    """A preset by name, with a model of an architecture and its learning rate.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}, expected {' or '.join(PRESETS)}")
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch is {arch!r}, expected {' or '.join(ARCHITECTURES)}")
    own = PRESETS[name]
    return replace(own, model=MODELS[name][arch], lr=LEARNING_RATES.get(name, {}).get(arch, own.lr))
