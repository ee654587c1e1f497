"""The models that models.py trains, and which implementation has which of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba2Config


class Model(NamedTuple):
    """A model and the tokens of a step."""

    config: MambaConfig
    batch: int = 8
    time: int = 2048


VOCABULARY = 50280
# As in mamba2attn-2.7b, with heads for 1024 channels.
ATTENTION = AttentionConfig(8, head_dim=128, d_conv=4, rotary_emb_dim=64, qkv_proj_bias=False, out_proj_bias=False)
GROUPED = AttentionConfig(32, 8, rotary_emb_dim=64, qkv_proj_bias=False, out_proj_bias=False)


def config(d_model: int, n_layer: int, **others: object) -> MambaConfig:
    """A model of the usual vocabulary."""
    return MambaConfig(d_model=d_model, n_layer=n_layer, vocab_size=VOCABULARY, **others)  # type: ignore[arg-type]


MODELS: Mapping[str, Model] = {
    "mamba-130m": Model(config(768, 24)),
    "mamba-790m": Model(config(1536, 48)),
    "mamba2-370m": Model(config(1024, 48, ssm_cfg=Mamba2Config())),
    "hybrid-370m": Model(config(1024, 48, ssm_cfg=Mamba2Config(), attn_layer_idx=range(4, 48, 8), attn_cfg=ATTENTION)),
    "transformer-1b": Model(
        config(2048, 16, attn_layer_idx=range(16), attn_cfg=GROUPED, d_intermediate=8192), batch=4, time=4096
    ),
}
MAMBA1 = ("mamba-130m", "mamba-790m")
MAMBA2 = ("mamba2-370m", "hybrid-370m")
TRANSFORMER = ("transformer-1b",)

SLOW, CUDA, INSTALLED, PATCHED = (
    "transformers",
    "transformers, mamba_ssm",
    "transformers, retrograd",
    "transformers, retrograd and its norms",
)
SLOW_COMPILED, PATCHED_COMPILED = f"{SLOW}, torch.compile", f"{PATCHED}, torch.compile"
NN, COMPILED, JAX = "retrograd.nn", "retrograd.nn, torch.compile", "retrograd.jax.nn"
MAMBA_SSM, MAMBA_SSM_COMPILED = "mamba_ssm", "mamba_ssm, torch.compile"
TORCH = "torch with cuDNN attention, torch.compile"
SLOW_BATCH = {"mamba-130m": 8, "mamba-790m": 1}  # at 8 a step of the slow path would take ten minutes

# Implementation -> its models.
IMPLS: Mapping[str, tuple[str, ...]] = {
    CUDA: (*MAMBA1, "mamba2-370m"),
    INSTALLED: (*MAMBA1, "mamba2-370m", *TRANSFORMER),
    PATCHED: (*MAMBA1, "mamba2-370m", *TRANSFORMER),
    SLOW_COMPILED: TRANSFORMER,
    PATCHED_COMPILED: TRANSFORMER,
    MAMBA_SSM: (*MAMBA1, *MAMBA2),
    MAMBA_SSM_COMPILED: MAMBA2,
    TORCH: TRANSFORMER,
    NN: tuple(MODELS),
    COMPILED: tuple(MODELS),
    JAX: tuple(MODELS),
    SLOW: (*MAMBA1, *TRANSFORMER),
}
