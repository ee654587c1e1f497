"""retrograd.jax.nn on a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from retrograd.jax import nn

pytestmark = pytest.mark.gpu
CONFIG = nn.MambaConfig(d_model=256, n_layer=2, vocab_size=253)
HYBRID = nn.MambaConfig(
    d_model=256,
    n_layer=2,
    vocab_size=253,
    d_intermediate=512,
    ssm_cfg=nn.Mamba2Config(),
    attn_layer_idx=(1,),
    attn_cfg=nn.AttentionConfig(num_heads=4, num_heads_kv=2, d_conv=4, rotary_emb_dim=32, qk_norm=True, window=100),
)
each_config = pytest.mark.parametrize("config", [CONFIG, HYBRID], ids=["mamba", "hybrid"])
CUT = 130  # steps of the first of two parts


def trained(config: nn.MambaConfig, device: jax.Device) -> tuple[Array, dict[str, Array]]:
    """The loss of one batch, in two parts, and every gradient, from one seed."""
    with jax.default_device(jax.devices("cpu")[0]):
        params = nn.init(jax.random.key(0), config)
        tokens = jax.random.randint(jax.random.key(1), (2, 301), 0, config.vocab_size)
        state = nn.initial_state(config, 2, capacity=301)

    def loss(params: dict[str, Array], tokens: Array, state: Any) -> Array:
        first, state = nn.language_model(params, config, tokens[:, :CUT], state)
        then, _ = nn.language_model(params, config, tokens[:, CUT:-1], state)
        logits = jnp.concatenate((first, then), axis=1)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1).mean()

    with jax.default_matmul_precision("highest"):
        found: tuple[Array, dict[str, Array]] = jax.jit(jax.value_and_grad(loss))(
            *jax.device_put((params, tokens, state), device)
        )
    return found


@each_config
def test_gradients_on_a_gpu_are_those_of_a_cpu(config: nn.MambaConfig) -> None:
    loss, gradients = trained(config, jax.devices("gpu")[0])
    expected_loss, expected = trained(config, jax.devices("cpu")[0])
    # The hardware's exponential rounds to 2^-22; some twenty such roundings between a weight and the loss
    # add up like a random walk, with a safety factor.
    assert abs(loss.item() - expected_loss.item()) <= 20 * 2**-22 * expected_loss.item()
    for name, gradient in gradients.items():
        exact = np.asarray(expected[name], np.float64)
        error = np.linalg.norm(np.asarray(gradient, np.float64) - exact) / np.linalg.norm(exact)
        assert error <= 40 * 2**-22, f"{name}: {error:.2e}"


@each_config
def test_two_runs_give_the_same_bits(config: nn.MambaConfig) -> None:
    (first, gradients), (second, again) = (trained(config, jax.devices("gpu")[0]) for _ in range(2))
    assert first == second
    assert all(jnp.array_equal(gradients[name], again[name]) for name in gradients)
