"""What generate.py measures: the models, the implementations, and the sizes of a measurement."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from model_shapes import ATTENTION

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba2Config

MAMBA, MAMBA2, TRANSFORMER, HYBRID = MODELS = ("mamba", "mamba2", "transformer", "hybrid")

NN, EXACT, GRAPHS, TRANSFORMERS = "retrograd", "retrograd, exact", "torch, graphs", "transformers"
TRANSFORMERS_KERNELS = "transformers, mamba_ssm"  # the row of TRANSFORMERS where it has found mamba_ssm's kernels
READ = "retrograd, tokens read"  # the same process as NN: each token's values are taken to Python
# Implementation -> its models.
IMPLS: Mapping[str, tuple[str, ...]] = {
    NN: MODELS,
    GRAPHS: MODELS,
    EXACT: MODELS,
    TRANSFORMERS: (MAMBA, MAMBA2, TRANSFORMER),
}
TOKEN, PREFILL, TRAIN = PASSES = ("token", "prefill", "train")
LIMITS = "limits"  # the pass that measures the rate of a copy

WINDOW = 64  # steps between two borders of an exact Mamba-2: a step computes again those since the last


class Setting(NamedTuple):
    """Models and sizes.

    Attributes:
        configs: of the models.
        batches: sequences that are generated side by side.
        prompt: tokens before the first generated one, in models without attention: their steps all take as long.
        slots: the most tokens of a sequence, in models with attention: its cache is full when the last token is timed.
        warm_up, tokens: generated tokens before the clock starts, and until it stops.
        runs: the most of them.
        profiled: tokens whose kernels are timed.
        prefill: tokens of a prompt whose prefill is timed.
        train: (B, T) of a training step.
        copied: bytes of a copy on a CPU.
    """

    configs: Mapping[str, MambaConfig]
    batches: tuple[int, ...]
    prompt: int
    slots: int
    warm_up: int
    tokens: int
    runs: int
    profiled: int
    prefill: int
    train: tuple[int, int]
    copied: int

    @property
    def generated(self) -> int:
        """Tokens of a run."""
        return self.warm_up + self.tokens

    def prompt_of(self, model: str) -> int:
        """Tokens before the first generated one."""
        return self.slots - self.generated if self.configs[model].attn_layer_idx else self.prompt

    def first_profiled(self, model: str) -> int:
        """The number of the first token whose kernels are timed: an exact Mamba-2's window is then half full."""
        middle = (WINDOW - self.profiled) // 2
        wait = (middle - self.prompt_of(model)) % WINDOW
        return wait if wait >= self.warm_up else wait + WINDOW

    def keys(self, model: str) -> float:
        """Keys that a timed token attends to, on average."""
        return self.prompt_of(model) + self.warm_up + (self.tokens - 1) / 2


def configs(
    d_model: int, n_layer: int, vocabulary: int, ssm: Mamba2Config, heads: AttentionConfig, beside: AttentionConfig
) -> Mapping[str, MambaConfig]:
    """The four models; `heads` is the transformer's attention, `beside` that of every eighth layer of the hybrid."""
    size = (d_model, n_layer, vocabulary)
    every_eighth = tuple(range(min(4, n_layer - 1), n_layer, 8))
    return {
        MAMBA: MambaConfig(*size),
        MAMBA2: MambaConfig(*size, ssm_cfg=ssm),
        # A gated MLP of 8/3 the channels has as many weights as one without a gate of the usual four times.
        TRANSFORMER: MambaConfig(
            *size, attn_layer_idx=tuple(range(n_layer)), attn_cfg=heads, d_intermediate=8 * d_model // 3
        ),
        HYBRID: MambaConfig(*size, ssm_cfg=ssm, attn_layer_idx=every_eighth, attn_cfg=beside),
    }


def attention(num_heads: int, rotated: int) -> AttentionConfig:
    """A transformer's attention."""
    return AttentionConfig(num_heads, rotary_emb_dim=rotated, qkv_proj_bias=False, out_proj_bias=False)


FULL = Setting(
    configs(1024, 24, 50277, Mamba2Config(), attention(16, 64), ATTENTION),
    batches=(1, 64),
    prompt=16,
    slots=2048,
    warm_up=32,
    tokens=128,  # two whole windows
    runs=5,
    profiled=16,
    prefill=8192,
    train=(8, 2048),
    copied=2**30,
)
TINY_ATTENTION = AttentionConfig(2, head_dim=32, d_conv=4, rotary_emb_dim=16, qkv_proj_bias=False, out_proj_bias=False)
# For a CPU: the same layers and the same calls.
TINY = Setting(
    configs(64, 2, 253, Mamba2Config(d_state=16, headdim=32), attention(4, 16), TINY_ATTENTION),
    batches=(1, 2),
    prompt=4,
    slots=16,
    warm_up=2,
    tokens=4,
    runs=2,
    profiled=2,
    prefill=32,
    train=(2, 16),
    copied=2**20,
)


class Job(NamedTuple):
    """What one process measures."""

    which: str  # a pass
    model: str
    impl: str
    batch: int

    def __str__(self) -> str:
        return " ".join(part for part in (self.which, self.model, self.impl) if part) + f" B {self.batch}"
