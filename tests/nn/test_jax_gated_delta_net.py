"""The layer of the gated delta rule in `retrograd.jax.nn` is PyTorch's as a pure function."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax_models import DRAWS, B, Draw, T, assert_drawn_alike, assert_right, assert_right_logits, drawn

import retrograd.nn
from retrograd.jax import nn
from retrograd.models.shapes import mixer_shapes

OWN = nn.GatedDeltaNetConfig(
    4, 2, head_dim_qk=4, head_dim_v=6, d_conv=3, negative_eigenvalues=True, conv_bias=True, bias=True
)
CONFIG = nn.MambaConfig(d_model=16, n_layer=1, vocab_size=29, ssm_cfg=OWN)
step = jax.jit(nn.step, static_argnums=1, static_argnames="exact")
forward = jax.jit(nn.language_model, static_argnums=1, static_argnames="exact")
assert_close = partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5)


@pytest.fixture(scope="module")
def first_seed() -> int:
    """The seed of the inputs: new in every run and shown by a failing test."""
    seed = int(np.random.SeedSequence().generate_state(1)[0]) % 10**6
    print(f"inputs drawn from seed {seed}")
    return seed


@pytest.fixture(scope="module")
def draws(first_seed: int) -> list[Draw]:
    return drawn(CONFIG, first_seed, draws=2 * DRAWS)


def test_logits_and_gradients_are_those_of_the_pytorch_model(draws: list[Draw]) -> None:
    assert_right(lambda params, tokens: nn.language_model(params, CONFIG, tokens), draws)


def test_packed_sequences_have_logits_and_gradients_of_each_alone(draws: list[Draw]) -> None:
    starts = jnp.array([0, T, 2 * T], jnp.int32)

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        return nn.language_model(params, CONFIG, tokens.reshape(1, -1), cu_seqlens=starts).reshape(B, T, -1)

    assert_right(run, draws)


def test_a_piece_and_then_steps_give_the_logits_of_the_whole(draws: list[Draw]) -> None:
    def run(params: Any, tokens: jax.Array) -> jax.Array:
        first, state = nn.language_model(params, CONFIG, tokens[:, :5], nn.initial_state(CONFIG, B))

        def one(state: Any, token: jax.Array) -> Any:
            output, state = nn.step(params, CONFIG, token, state)
            return state, output

        _, then = jax.lax.scan(one, state, tokens[:, 5:].T)
        return jnp.concatenate((first, jnp.moveaxis(then, 0, 1)), axis=1)

    assert_right_logits(run, draws)


@torch.no_grad()
def test_an_exact_model_goes_on_by_steps_and_by_several_at_once_with_the_logits_of_pytorchs() -> None:
    """Beyond the border of 128 steps; also from a state without steps."""
    weights = nn.init(jax.random.key(0), CONFIG)
    text = jax.random.randint(jax.random.key(1), (2, 134), 0, CONFIG.vocab_size)
    model = retrograd.nn.LanguageModel(CONFIG, exact=True)
    model.load_state_dict(nn.to_torch(weights, CONFIG).state_dict())
    whole = model(torch.from_numpy(np.array(text))).numpy()
    _, state = forward(weights, CONFIG, text[:, :125], nn.initial_state(CONFIG, 2), exact=True)
    found = []
    for t in range(125, 130):
        logits, state = step(weights, CONFIG, text[:, t], state, exact=True)
        found.append(logits)
    rest, _ = forward(weights, CONFIG, text[:, 130:], state, exact=True)
    assert_close(jnp.concatenate((jnp.stack(found, 1), rest), 1), whole[:, 125:])
    first, _ = step(weights, CONFIG, text[:, 0], nn.initial_state(CONFIG, 2), exact=True)
    assert_close(first, whole[:, 0])


def test_init_draws_from_the_distributions_of_the_modules() -> None:
    many = replace(OWN, num_heads=64, num_heads_qk=64, head_dim_qk=4, head_dim_v=64)
    assert_drawn_alike(replace(CONFIG, d_model=64, n_layer=4, ssm_cfg=many))


PARAMS = {name: jnp.zeros(shape) for name, shape in mixer_shapes(OWN, 16).items()}
STATE = nn.gated_delta_net_state(OWN, 16, 2)
U = jnp.zeros((2, 4, 16))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: nn.gated_delta_net(PARAMS, 4, U), TypeError, "gated_delta_net: config is int, expected a GatedDelta"),  # type: ignore[arg-type]
        (
            lambda: nn.gated_delta_net(PARAMS, OWN, U[0]),
            ValueError,
            r"gated_delta_net: u has shape \(4, 16\), expected",
        ),
        (lambda: nn.gated_delta_net(PARAMS, OWN, U, (1, 2)), TypeError, "gated_delta_net: state is tuple, expected a"),  # type: ignore[arg-type]
        (
            lambda: nn.gated_delta_net(PARAMS, OWN, U, context=1),  # type: ignore[arg-type]
            ValueError,
            "gated_delta_net: context is 'given', expected None: its steps cannot be divided",
        ),
        (
            lambda: nn.gated_delta_net_step(PARAMS, OWN, U[:, 0], STATE._replace(recurrent=None)),
            TypeError,
            "gated_delta_net_step: state.recurrent is NoneType, expected a jax.Array",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^{says}"):
        call()
