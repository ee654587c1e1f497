"""What benchmarks/models.py compares is the same model, and the same loss."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn.attention import SDPBackend

from retrograd.jax import nn as jax_nn
from retrograd.nn import AttentionConfig, LanguageModel, Mamba2Config, MambaConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
model_jax, model_torch, plain_transformer, shapes = (
    import_module(name) for name in ("model_jax", "model_torch", "plain_transformer", "model_shapes")
)

ATTENTION = AttentionConfig(4, 2, rotary_emb_dim=16, qkv_proj_bias=False, out_proj_bias=False)
TRANSFORMER = MambaConfig(64, 2, 256, attn_layer_idx=(0, 1), attn_cfg=ATTENTION, d_intermediate=128)
MAMBA2 = MambaConfig(32, 1, 256, ssm_cfg=Mamba2Config(d_state=8, headdim=16))


def test_every_implementation_has_models_and_a_maker() -> None:
    for impl, models in shapes.IMPLS.items():
        assert set(models) <= set(shapes.MODELS)
        assert impl == shapes.JAX or impl in model_torch.MAKERS
    for model in shapes.MODELS.values():
        assert model.batch * model.time == 16384


def test_the_plain_transformer_is_the_model_of_retrograd_nn(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = LanguageModel(TRANSFORMER)
    peer = plain_transformer.Transformer(TRANSFORMER, 20)
    peer.load_state_dict(model.state_dict())
    monkeypatch.setattr(plain_transformer.SDPBackend, "CUDNN_ATTENTION", SDPBackend.MATH, raising=False)
    tokens = torch.randint(256, (2, 20))
    assert torch.allclose(peer(tokens), model(tokens), atol=1e-5)


def test_both_frameworks_take_the_same_steps() -> None:
    torch.manual_seed(0)
    model = LanguageModel(MAMBA2)
    tokens = torch.randint(256, (2, 20))
    params = jax_nn.from_torch(model)
    state = model_jax.ADAM.init(params)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(2):
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies floats by counts
            params, state, found = model_jax.take_step(params, state, MAMBA2, jnp.asarray(tokens.int().numpy()))
        loss = model_torch.next_token_loss(model(tokens), tokens)
        assert float(found) == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
