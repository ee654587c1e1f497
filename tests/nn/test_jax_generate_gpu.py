"""Exact models of `retrograd.jax.nn` on a GPU: generation has the bits of training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np

from retrograd.jax import nn

pytestmark = pytest.mark.gpu
ATTENTION = nn.AttentionConfig(num_heads=4, num_heads_kv=2, rotary_emb_dim=32, d_conv=4, qk_norm=True)
MAMBA = nn.MambaConfig(d_model=256, n_layer=2, vocab_size=253)
MAMBA2 = replace(MAMBA, ssm_cfg=nn.Mamba2Config())
CONFIGS = {
    "mamba": MAMBA,
    "mamba2": MAMBA2,
    "transformer": replace(MAMBA, attn_layer_idx=(0, 1), attn_cfg=ATTENTION, d_intermediate=512),
    "hybrid": replace(MAMBA2, attn_layer_idx=(1,), attn_cfg=ATTENTION, d_intermediate=512),
}
each_model = pytest.mark.parametrize("name", CONFIGS)
TIME, COUNT = 120, 20  # beyond the border at 128 steps, from which a step of Mamba-2 goes on


def model(name: str) -> tuple[dict[str, jax.Array], jax.Array]:
    """bfloat16 weights and seven prompts."""
    params = nn.init(jax.random.key(0), CONFIGS[name])
    prompts = jax.random.randint(jax.random.key(1), (7, TIME), 0, MAMBA.vocab_size)
    return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), params), prompts


def generated(name: str, params: Any, prompts: Any, **options: Any) -> Any:
    return nn.generate(
        params, CONFIGS[name], prompts, COUNT, exact=True, temperature=0.8, log_probabilities=True, **options
    )


@pytest.mark.parametrize("batch", [1, 7])
@each_model
def test_generated_log_probabilities_are_scores_to_the_bit(name: str, batch: int) -> None:
    params, prompts = model(name)
    tokens, found = generated(name, params, prompts[:batch])
    text = jnp.concatenate((prompts[:batch], tokens), axis=1)
    scored = jax.jit(partial(nn.score, config=CONFIGS[name], exact=True, temperature=0.8))(params, tokens=text)
    assert np.abs(scored[:, TIME - 1 :] - found).max() == 0


@each_model
def test_a_row_has_the_tokens_and_bits_alone_that_it_has_in_a_batch(name: str) -> None:
    params, prompts = model(name)
    whole = generated(name, params, prompts, seed=5)
    alone = generated(name, params, prompts[3:4], seed=8)
    for many, one in zip(whole, alone, strict=True):
        assert np.array_equal(many[3:4], one)


@each_model
def test_packed_prompts_have_the_tokens_and_bits_of_each_alone(name: str) -> None:
    params, prompts = model(name)
    packed = generated(name, params, [prompts[0, :50], prompts[1], prompts[2, :7]], seed=5)
    for row, length in enumerate((50, TIME, 7)):
        alone = generated(name, params, prompts[row : row + 1, :length], seed=5 + row)
        for many, one in zip(packed, alone, strict=True):
            assert np.array_equal(many[row : row + 1], one)
