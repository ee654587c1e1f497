"""Tiny transformers models with random weights, on their own functions or on retrograd's."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

import retrograd.compat

VOCABULARY = 50
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4}
JAMBA = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
}
MAMBA2 = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 8,
    "head_dim": 8,
    "num_heads": 8,
    "n_groups": 2,
    "chunk_size": 8,
}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BAMBA = {
    **SIZES,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
ZAMBA2 = {
    **SIZES,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "layers_block_type": ["mamba", "hybrid"],
    "hybrid_layer_ids": [1],
    "num_mem_blocks": 1,
    "use_shared_attention_adapter": False,
    "adapter_rank": 4,
    "mamba_d_state": 8,
    "n_mamba_heads": 8,
    "mamba_headdim": 8,
    "mamba_ngroups": 2,
    "chunk_size": 8,
}
NEMOTRON_H = {
    **SIZES,
    "layers_block_type": ["mamba", "attention"],
    "head_dim": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 8,
    "chunk_size": 8,
}
GRANITE = {
    **BAMBA,
    "num_hidden_layers": 2,
    "layer_types": ["mamba", "attention"],
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "shared_intermediate_size": 32,
}
# A model's package in transformers -> the prefix of its class names, and its configuration.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", MAMBA),
    "falcon_mamba": ("FalconMamba", MAMBA),
    "jamba": ("Jamba", JAMBA),
    "mamba2": ("Mamba2", MAMBA2),
    "bamba": ("Bamba", {**BAMBA, "num_hidden_layers": 2, "attn_layer_indices": [1]}),
    "zamba2": ("Zamba2", ZAMBA2),
    "falcon_h1": ("FalconH1", {**BAMBA, "num_hidden_layers": 2, "mamba_d_ssm": 64}),
    "nemotron_h": ("NemotronH", NEMOTRON_H),
    "granitemoehybrid": ("GraniteMoeHybrid", GRANITE),
}
ZAMBA = {
    **SIZES,
    "num_key_value_heads": 4,
    "attention_hidden_size": 64,
    "num_hidden_layers": 5,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba"],
    "n_mamba_heads": 2,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
}
UNCOVERED = {"zamba": ("Zamba", ZAMBA)}  # its scans run packed texts into one another
LINEAR = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {"num_experts_per_tok": 1, "moe_intermediate_size": 16}
KIMI = {
    **SIZES,
    **EXPERTS,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "num_local_experts": 2,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
}
# Models of gated delta rules.
DELTA: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": (
        "Qwen3Next",
        {**SIZES, **LINEAR, **EXPERTS, "head_dim": 8, "num_experts": 2, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_5": ("Qwen3_5", {**SIZES, **LINEAR, "head_dim": 8}),
    "olmo_hybrid": ("OlmoHybrid", {**SIZES, **LINEAR, "linear_num_key_heads": 4}),
    "kimi_linear": ("KimiLinear", KIMI),
}
STAND_INS = {
    "chunk_gated_delta_rule": "fla.ops.gated_delta_rule",
    "chunk_kda": "fla.ops.kda",
    "fused_recurrent_gated_delta_rule": "fla.ops.gated_delta_rule",
    "fused_recurrent_kda": "fla.ops.kda",
    "causal_conv1d_fn": "causal_conv1d",
    "causal_conv1d_update": "causal_conv1d",
    "mamba_chunk_scan_combined": "mamba_ssm.ops.triton.ssd_combined",
    "mamba_inner_fn": "mamba_ssm",
    "mamba_split_conv1d_scan_combined": "mamba_ssm.ops.triton.ssd_combined",
    "selective_scan_fn": "mamba_ssm",
    "selective_state_update": "mamba_ssm.ops.triton.selective_state_update",
}


def slow(name: str) -> Any:
    """A model that uses transformers' own functions."""
    return _model(name)


def ours(name: str, **settings: Any) -> tuple[Any, Counter[str]]:
    """A model imported after `install`, and the number of calls of each of our functions."""
    calls: Counter[str] = Counter()
    with _counted(calls), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # other tests may have imported models already
        retrograd.compat.install(force=True)
        try:
            return _model(name, **settings), calls
        finally:
            retrograd.compat.uninstall()


def _model(name: str, **settings: Any) -> Any:
    """A model whose module is imported again, so that it searches for the packages now."""
    import transformers

    prefix, options = (MODELS | UNCOVERED | DELTA)[name]
    full = f"transformers.models.{name}.modeling_{name}"
    sys.modules.pop(full, None)
    module = importlib.import_module(full)
    del sys.modules[full]
    torch.manual_seed(0)
    kind = getattr(transformers, f"{prefix}TextConfig", None) or getattr(transformers, f"{prefix}Config")
    config = kind(**TOKENS, **options, **settings)
    return getattr(module, f"{prefix}ForCausalLM")(config)


@contextmanager
def _counted(calls: Counter[str]) -> Iterator[None]:
    """Count the calls of the stand-ins' functions that are looked up inside this context."""

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return wrapped

    with ExitStack() as stack:
        for name, path in STAND_INS.items():
            module = importlib.import_module(f"retrograd.compat.{path}")
            stack.enter_context(mock.patch.object(module, name, counting(name, getattr(module, name))))
        yield
