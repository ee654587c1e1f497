"""retrograd.jax.nn on a GPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from retrograd.jax import nn

pytestmark = pytest.mark.gpu
CONFIG = nn.MambaConfig(d_model=256, n_layer=2, vocab_size=253)


def trained(device: jax.Device) -> tuple[Array, dict[str, Array]]:
    """The loss of one batch and every gradient, from one seed."""
    with jax.default_device(jax.devices("cpu")[0]):
        params = nn.init(jax.random.key(0), CONFIG)
        tokens = jax.random.randint(jax.random.key(1), (2, 301), 0, CONFIG.vocab_size)

    def loss(params: dict[str, Array], tokens: Array) -> Array:
        logits = nn.language_model(params, CONFIG, tokens[:, :-1])
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1).mean()

    with jax.default_matmul_precision("highest"):
        found: tuple[Array, dict[str, Array]] = jax.jit(jax.value_and_grad(loss))(
            jax.device_put(params, device), jax.device_put(tokens, device)
        )
    return found


def test_gradients_on_a_gpu_are_those_of_a_cpu() -> None:
    loss, gradients = trained(jax.devices("gpu")[0])
    expected_loss, expected = trained(jax.devices("cpu")[0])
    # The hardware's exponential rounds to 2^-22; some twenty such roundings between a weight and the loss
    # add up like a random walk, with a safety factor.
    assert abs(loss.item() - expected_loss.item()) <= 20 * 2**-22 * expected_loss.item()
    for name, gradient in gradients.items():
        exact = np.asarray(expected[name], np.float64)
        error = np.linalg.norm(np.asarray(gradient, np.float64) - exact) / np.linalg.norm(exact)
        assert error <= 40 * 2**-22, f"{name}: {error:.2e}"


def test_two_runs_give_the_same_bits() -> None:
    (first, gradients), (second, again) = (trained(jax.devices("gpu")[0]) for _ in range(2))
    assert first == second
    assert all(jnp.array_equal(gradients[name], again[name]) for name in gradients)
