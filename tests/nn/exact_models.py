"""Small models of every kind of layer, for the tests of generation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from retrograd.nn import AttentionConfig, GatedDeltaNetConfig, LanguageModel, Mamba1Config, Mamba2Config, MambaConfig

ATTENTION = AttentionConfig(4, 2, rotary_emb_dim=8, d_conv=3, qk_norm=True)
SIZES = MambaConfig(d_model=32, n_layer=3, vocab_size=60)
MAMBA2 = Mamba2Config(d_state=16, headdim=8)
CONFIGS = {
    "mamba": replace(SIZES, ssm_cfg=Mamba1Config()),
    "mamba2": replace(SIZES, ssm_cfg=MAMBA2),
    "mamba2 with ssd's gate": replace(SIZES, ssm_cfg=replace(MAMBA2, rmsnorm=False, D_has_hdim=True)),
    "gated delta rule": replace(SIZES, n_layer=2, ssm_cfg=GatedDeltaNetConfig(4, 2, head_dim_qk=8, head_dim_v=8)),
    "transformer": replace(SIZES, attn_layer_idx=(0, 1, 2), attn_cfg=ATTENTION, d_intermediate=48),
    "hybrid": replace(SIZES, ssm_cfg=MAMBA2, attn_layer_idx=(1,), attn_cfg=ATTENTION),
}
each_model = pytest.mark.parametrize("name", CONFIGS)


def model(name: str, dtype: torch.dtype = torch.float32, exact: bool | None = True) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(CONFIGS[name], exact=exact).to(dtype)


def tokens(batch: int, time: int) -> Tensor:
    return torch.randint(60, (batch, time))
