"""The published models of state-spaces: their config.json is read, and their weights load by key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retrograd.models.shapes import model_shapes
from retrograd.nn import AttentionConfig, LanguageModel, Mamba1Config, Mamba2Config, MambaConfig, load, save

Layout = dict[str, tuple[int, ...]]

COMMON: dict[str, Any] = {
    "vocab_size": 50277,
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "tie_embeddings": True,
}
MAMBA: dict[str, Any] = COMMON | {"d_model": 768, "n_layer": 24, "ssm_cfg": {}, "pad_vocab_size_multiple": 8}
MAMBA2: dict[str, Any] = COMMON | {
    "d_model": 768,
    "d_intermediate": 0,
    "n_layer": 24,
    "ssm_cfg": {"layer": "Mamba2"},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "pad_vocab_size_multiple": 16,
}
HYBRID: dict[str, Any] = MAMBA2 | {
    "d_model": 2560,
    "n_layer": 64,
    "attn_layer_idx": [9, 18, 27, 37, 46, 56],
    "attn_cfg": {
        "causal": True,
        "d_conv": 4,
        "head_dim": 128,
        "num_heads": 30,
        "out_proj_bias": False,
        "qkv_proj_bias": False,
        "rotary_emb_dim": 64,
    },
}
TRANSFORMER: dict[str, Any] = MAMBA2 | {
    "d_model": 2560,
    "d_intermediate": 6912,
    "n_layer": 32,
    "ssm_cfg": {},
    "attn_layer_idx": list(range(32)),
    "attn_cfg": {
        "causal": True,
        "head_dim": 128,
        "num_heads": 20,
        "out_proj_bias": False,
        "qkv_proj_bias": False,
        "rotary_emb_dim": 128,
    },
}


def mamba(d: int) -> Layout:
    inner, rank = 2 * d, math.ceil(d / 16)
    return {
        "A_log": (inner, 16),
        "D": (inner,),
        "in_proj.weight": (2 * inner, d),
        "conv1d.weight": (inner, 1, 4),
        "conv1d.bias": (inner,),
        "x_proj.weight": (rank + 32, inner),
        "dt_proj.weight": (inner, rank),
        "dt_proj.bias": (inner,),
        "out_proj.weight": (d, inner),
    }


def mamba2(d: int) -> Layout:
    inner, heads = 2 * d, d // 32
    return {
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (heads,),
        "in_proj.weight": (2 * inner + 256 + heads, d),
        "conv1d.weight": (inner + 256, 1, 4),
        "conv1d.bias": (inner + 256,),
        "norm.weight": (inner,),
        "out_proj.weight": (d, inner),
    }


CONVOLVED_ATTENTION: Layout = {
    "in_proj.weight": (3 * 30 * 128, 2560),
    "conv1d.weight": (3 * 30 * 128, 1, 4),
    "conv1d.bias": (3 * 30 * 128,),
    "out_proj.weight": (2560, 30 * 128),
}
ATTENTION: Layout = {"in_proj.weight": (3 * 2560, 2560), "out_proj.weight": (2560, 2560)}
MLP: Layout = {"norm2.weight": (2560,), "mlp.fc1.weight": (2 * 6912, 2560), "mlp.fc2.weight": (2560, 6912)}


def layout(given: dict[str, Any], ssm: Layout, attention: Layout, beside: Layout) -> Layout:
    """Of a whole model, from that of its layers."""
    d, multiple = given["d_model"], given["pad_vocab_size_multiple"]
    table = (math.ceil(given["vocab_size"] / multiple) * multiple, d)
    found: Layout = {"backbone.embedding.weight": table, "lm_head.weight": table, "backbone.norm_f.weight": (d,)}
    for number in range(given["n_layer"]):
        mixer = attention if number in given.get("attn_layer_idx", ()) else ssm
        own = {"norm.weight": (d,)} | {f"mixer.{name}": shape for name, shape in mixer.items()} | beside
        found |= {f"backbone.layers.{number}.{name}": shape for name, shape in own.items()}
    return found


PUBLISHED = {
    "mamba-130m": (MAMBA, layout(MAMBA, mamba(768), {}, {}), 129_135_360),
    "mamba2-130m": (MAMBA2, layout(MAMBA2, mamba2(768), {}, {}), 128_989_632),
    "mamba2attn-2.7b": (HYBRID, layout(HYBRID, mamba2(2560), CONVOLVED_ATTENTION, {}), 2_697_590_880),
    "transformerpp-2.7b": (TRANSFORMER, layout(TRANSFORMER, {}, ATTENTION, MLP), 2_666_457_600),
}


@pytest.mark.parametrize(("given", "expected", "parameters"), PUBLISHED.values(), ids=PUBLISHED)
def test_names_and_shapes_are_those_of_the_published_model(
    given: dict[str, Any], expected: Layout, parameters: int
) -> None:
    config = MambaConfig.from_dict(given)
    assert MambaConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    ours = LanguageModel(config, device="meta")
    assert {name: tuple(p.shape) for name, p in ours.state_dict().items()} == expected
    assert dict(model_shapes(config)) == {name: s for name, s in expected.items() if name != "lm_head.weight"}
    assert sum(p.numel() for p in ours.parameters()) == parameters


SMALL = MambaConfig(
    d_model=32,
    n_layer=4,
    vocab_size=61,
    d_intermediate=50,
    ssm_cfg=Mamba2Config(d_state=8, headdim=16),
    attn_layer_idx=(1, 3),
    attn_cfg=AttentionConfig(num_heads=2, d_conv=4, rotary_emb_dim=8),
    pad_vocab_size_multiple=16,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_of_a_mixture_of_layers_loads_by_key(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    theirs = LanguageModel(SMALL).to(dtype)
    weights: dict[str, Tensor] = theirs.state_dict()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(SMALL.to_dict()))
    ours = load(tmp_path)
    assert ours.config == SMALL
    assert ours.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in ours.state_dict().items())
    wide = {
        name.rpartition(".")[2] for name, p in load(tmp_path, dtype=torch.float16).named_parameters() if p.itemsize > 2
    }
    assert wide == {"A_log", "D", "dt_bias"}


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        MambaConfig(8, 1, 16, ssm_cfg=Mamba1Config(dt_rank=3, bias=True)),
        MambaConfig(8, 1, 16, ssm_cfg=Mamba2Config(headdim=4, dt_limit=(0.01, 0.5), A_init_range=(1, 2), d_state=4)),
    ],
)
def test_a_config_is_read_back_from_a_folder(tmp_path: Path, config: MambaConfig) -> None:
    save(LanguageModel(config), tmp_path)
    assert load(tmp_path).config == config
