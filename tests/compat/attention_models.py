"""Tiny models of transformers with random weights, on their own attention or on ours."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from compat_models import TOKENS, VOCABULARY
from torch import Tensor

from retrograd.compat.transformers import register

STEPS = 12
BASE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
WINDOW = {"sliding_window": 5}
LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}
# The prefix of a model's classes -> what its configuration has besides.
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": WINDOW,
    "Qwen3": {"head_dim": 16},
    "Gemma2": {"head_dim": 16, **WINDOW},
    "Gemma3": {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"], **WINDOW},
    "GptOss": {"head_dim": 16, **WINDOW, **EXPERTS},
    "DeepseekV3": LATENT,
    "Phimoe": {**WINDOW, **EXPERTS},  # its layers do not pass the window on: only the mask has it
    "Llama4": {"head_dim": 8, "attention_chunk_size": 4, "intermediate_size_mlp": 16, "num_local_experts": 2},
}
TEXT = {"Gemma3": "Gemma3Text", "Llama4": "Llama4Text"}  # the prefix of their configurations
LEFT, RIGHT, HOLES = (
    [3, 9, 0],
    [0, 8, 4],
    [3, 2, 7],
)  # steps that are padding, tokens, padding; of HOLES the middle ones
PACKED = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]

register()


def model_of(name: str, implementation: str, **options: Any) -> Any:
    torch.manual_seed(0)
    settings = TOKENS | BASE | MODELS[name] | options
    config = getattr(transformers, f"{TEXT.get(name, name)}Config")(**settings)
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "sinks" in parameter_name:  # they are made without values
                parameter.normal_()
    return model.eval()


def drawn(seed: int, steps: int = STEPS) -> Tensor:
    return torch.randint(2, VOCABULARY, (2, steps), generator=torch.Generator().manual_seed(seed))


def mask_with(lengths: list[int]) -> Tensor:
    """(2, STEPS): a row with padding, and one without."""
    before, tokens, after = lengths
    row = [0] * before + [1] * tokens + [0] * after if lengths != HOLES else [1] * before + [0] * tokens + [1] * after
    return torch.tensor([row, [1] * STEPS])


def answer(model: Any, ids: Tensor, mask: Tensor | None = None, **more: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits at tokens, and gradients of a loss at tokens that come after tokens."""
    model.zero_grad()
    labels = ids
    if mask is not None:
        more["attention_mask"] = mask
        before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
        labels = ids.masked_fill(mask * before == 0, -100)
    result = model(ids, labels=labels, use_cache=False, **more)
    result.loss.backward()
    logits = result.logits.detach()
    return logits if mask is None else logits[mask.bool()], {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }
