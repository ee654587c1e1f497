"""The models that models.py trains, and which implementation has which of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.models.config import MambaConfig
from retrograd.models.layers import AttentionConfig, Mamba2Config


class Foreign(NamedTuple):
    """A model that only transformers has.

    Attributes:
        kind: its name, of which transformers makes `<kind>Config` and `<kind>ForCausalLM`.
        options: what its configuration has in place of the defaults.
        attention: transformers' fastest attention for it.
    """

    kind: str
    options: Mapping[str, Any]
    attention: str = "sdpa"


class Model(NamedTuple):
    """A model and the tokens of a step."""

    config: MambaConfig | Foreign
    batch: int = 8
    time: int = 2048


VOCABULARY = 50280
# As in mamba2attn-2.7b, with heads for 1024 channels.
ATTENTION = AttentionConfig(8, head_dim=128, d_conv=4, rotary_emb_dim=64, qkv_proj_bias=False, out_proj_bias=False)
GROUPED = AttentionConfig(32, 8, rotary_emb_dim=64, qkv_proj_bias=False, out_proj_bias=False)


def config(d_model: int, n_layer: int, **others: object) -> MambaConfig:
    """A model of the usual vocabulary."""
    return MambaConfig(d_model=d_model, n_layer=n_layer, vocab_size=VOCABULARY, **others)  # type: ignore[arg-type]


# The layers of Bamba-9B, Qwen3-8B and gpt-oss-20b, fewer of them, and our vocabulary.
FEW: dict[str, Any] = {"vocab_size": VOCABULARY, "use_cache": False, "pad_token_id": 0}
BAMBA = Foreign("Bamba", {**FEW, "num_hidden_layers": 8, "attn_layer_indices": [4], "tie_word_embeddings": False})
QWEN3 = Foreign(
    "Qwen3",
    {
        **FEW,
        "num_hidden_layers": 8,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
    },
)
# SDPA has no sinks; FlexAttention has, by its logarithms of sums.
GPT_OSS = Foreign("GptOss", {**FEW, "num_hidden_layers": 4, "num_local_experts": 32}, attention="flex_attention")
# The layers of Qwen3.5-4B, of which every fourth attends, and of Kimi Linear, whose experts we leave out.
QWEN35 = Foreign(
    "Qwen3_5Text",
    {
        **FEW,
        "num_hidden_layers": 8,
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
)
KIMI = Foreign(
    "KimiLinear",
    {**FEW, "num_hidden_layers": 4, "mlp_layer_types": ["dense"] * 4, "bos_token_id": 1, "eos_token_id": 2},
)

MODELS: Mapping[str, Model] = {
    "mamba-130m": Model(config(768, 24)),
    "mamba-790m": Model(config(1536, 48)),
    "mamba2-370m": Model(config(1024, 48, ssm_cfg=Mamba2Config())),
    "hybrid-370m": Model(config(1024, 48, ssm_cfg=Mamba2Config(), attn_layer_idx=range(4, 48, 8), attn_cfg=ATTENTION)),
    "transformer-1b": Model(
        config(2048, 16, attn_layer_idx=range(16), attn_cfg=GROUPED, d_intermediate=8192), batch=4, time=4096
    ),
    "mamba2-1.3b": Model(config(2048, 48, ssm_cfg=Mamba2Config())),
    "bamba-9b, 8 layers": Model(BAMBA, batch=4, time=4096),
    "qwen3-8b, 8 layers": Model(QWEN3, batch=4, time=4096),
    "gpt-oss-20b, 4 layers": Model(GPT_OSS, batch=4, time=4096),
    "qwen3.5-4b, 8 layers": Model(QWEN35, batch=4, time=4096),
    "kimi-linear, 4 layers": Model(KIMI, batch=4, time=4096),
}
MAMBA1 = ("mamba-130m", "mamba-790m")
MAMBA2 = ("mamba2-370m", "hybrid-370m")
TRANSFORMER = ("transformer-1b",)
BIG_MAMBA2 = ("mamba2-1.3b",)
HYBRID = ("bamba-9b, 8 layers",)
ATTENDING = ("qwen3-8b, 8 layers", "gpt-oss-20b, 4 layers")
DELTA = ("qwen3.5-4b, 8 layers", "kimi-linear, 4 layers")
OWN = (*MAMBA1, *MAMBA2, *TRANSFORMER)  # that retrograd.nn has, too

SLOW, CUDA, FLA, INSTALLED, PATCHED = (
    "transformers",
    "transformers, mamba_ssm",
    "transformers, fla",
    "transformers, retrograd",
    "transformers, retrograd and its norms",
)
SLOW_COMPILED, CUDA_COMPILED, PATCHED_COMPILED = (f"{impl}, torch.compile" for impl in (SLOW, CUDA, PATCHED))
NN, COMPILED, JAX = "retrograd.nn", "retrograd.nn, torch.compile", "retrograd.jax.nn"
MAMBA_SSM, MAMBA_SSM_COMPILED = "mamba_ssm", "mamba_ssm, torch.compile"
TORCH = "torch with cuDNN attention, torch.compile"
SLOW_BATCH = {"mamba-130m": 8, "mamba-790m": 1}  # at 8 a step of the slow path would take ten minutes

# Implementation -> its models.
IMPLS: Mapping[str, tuple[str, ...]] = {
    CUDA: (*MAMBA1, "mamba2-370m", *BIG_MAMBA2, *HYBRID),
    CUDA_COMPILED: ("mamba2-370m", *BIG_MAMBA2, *HYBRID),
    FLA: DELTA,
    INSTALLED: (*MAMBA1, "mamba2-370m", *BIG_MAMBA2, *TRANSFORMER, *HYBRID, *ATTENDING, *DELTA),
    PATCHED: (*MAMBA1, "mamba2-370m", *BIG_MAMBA2, *TRANSFORMER, *HYBRID, *ATTENDING, *DELTA),
    SLOW_COMPILED: (*TRANSFORMER, *ATTENDING),
    PATCHED_COMPILED: ("mamba2-370m", *BIG_MAMBA2, *TRANSFORMER, *HYBRID, *ATTENDING),
    MAMBA_SSM: (*MAMBA1, *MAMBA2),
    MAMBA_SSM_COMPILED: MAMBA2,
    TORCH: TRANSFORMER,
    NN: OWN,
    COMPILED: OWN,
    JAX: OWN,
    SLOW: (*MAMBA1, *TRANSFORMER, *ATTENDING),
}
