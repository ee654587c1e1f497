"""Generation by the models of `retrograd.jax.nn`: what is drawn, its log probabilities, and exact models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
import torch

import retrograd.nn
from retrograd.jax import nn
from retrograd.jax.nn.sampling import Sampling, keys_of, seeds_of, words_at

ATTENTION = nn.AttentionConfig(num_heads=2, num_heads_kv=1, rotary_emb_dim=4, d_conv=3, qk_norm=True)
MAMBA = nn.MambaConfig(d_model=16, n_layer=1, vocab_size=29, ssm_cfg=nn.Mamba1Config(d_state=4))
OWN2 = nn.Mamba2Config(d_state=4, headdim=8)
MAMBA2 = replace(MAMBA, ssm_cfg=OWN2)
CONFIGS = {
    "mamba": MAMBA,
    "mamba2": MAMBA2,
    "transformer": replace(MAMBA, attn_layer_idx=(0,), attn_cfg=ATTENTION, d_intermediate=24),
    "hybrid": replace(MAMBA2, n_layer=2, attn_layer_idx=(1,), attn_cfg=ATTENTION, tie_embeddings=False),
}
each_model = pytest.mark.parametrize("name", CONFIGS)
COUNT = 6

forward = jax.jit(nn.language_model, static_argnums=1, static_argnames="exact")
score = jax.jit(nn.score, static_argnums=1, static_argnames=("exact", "temperature"))
step = jax.jit(nn.step, static_argnums=1, static_argnames="exact")
assert_close = partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5)


@cache
def params(name: str) -> dict[str, jax.Array]:
    """Weights large enough that tokens are not alike in probability."""
    return jax.tree.map(lambda weight: 2 * weight, nn.init(jax.random.key(0), CONFIGS[name]))


def tokens(batch: int, time: int) -> jax.Array:
    return jax.random.randint(jax.random.key(1), (batch, time), 0, MAMBA.vocab_size)


def generated(name: str, prompt: Any, count: int = COUNT, **options: Any) -> Any:
    return nn.generate(params(name), CONFIGS[name], prompt, count, **options)


@each_model
def test_the_likeliest_tokens_are_those_of_whole_forward_passes(name: str) -> None:
    prompt = tokens(2, 4)
    drawn = generated(name, prompt, temperature=0)
    logits = forward(params(name), CONFIGS[name], jnp.concatenate((prompt, drawn), axis=1))
    assert drawn.dtype == jnp.int32
    assert np.array_equal(drawn, logits[:, 3:-1, : MAMBA.vocab_size].argmax(-1))


@each_model
def test_log_probabilities_of_an_exact_model_are_those_of_its_forward_pass(name: str) -> None:
    prompt = tokens(2, 4)
    drawn, found = generated(name, prompt, exact=True, temperature=0.7, seed=3, log_probabilities=True)
    text = jnp.concatenate((prompt, drawn), axis=1)
    expected = score(params(name), CONFIGS[name], text, exact=True, temperature=0.7)
    assert found.dtype == expected.dtype == jnp.float32
    assert_close(found, expected[:, 3:])


@each_model
@torch.no_grad()
def test_the_logits_of_an_exact_model_are_those_of_pytorchs(name: str) -> None:
    text = tokens(2, 10)
    model = retrograd.nn.LanguageModel(CONFIGS[name], exact=True)
    model.load_state_dict(nn.to_torch(params(name), CONFIGS[name]).state_dict())
    expected = model(torch.from_numpy(np.array(text))).numpy()
    assert_close(forward(params(name), CONFIGS[name], text, exact=True), expected)


def test_an_exact_mamba2_goes_on_by_steps_and_by_several_at_once() -> None:
    """Beyond the border of 128 steps, with the gate of `ssd`; also from a state without steps."""
    config = replace(MAMBA2, ssm_cfg=replace(OWN2, rmsnorm=False))
    weights, text = nn.init(jax.random.key(0), config), tokens(2, 140)
    whole = forward(weights, config, text, exact=True)
    _, state = forward(weights, config, text[:, :125], nn.initial_state(config, 2), exact=True)
    found = []
    for t in range(125, 130):
        logits, state = step(weights, config, text[:, t], state, exact=True)
        found.append(logits)
    rest, _ = forward(weights, config, text[:, 130:], state, exact=True)
    assert_close(jnp.concatenate((jnp.stack(found, 1), rest), 1), whole[:, 125:])
    first, _ = step(weights, config, text[:, 0], nn.initial_state(config, 2), exact=True)
    assert_close(first, whole[:, 0])


def test_a_row_draws_the_same_alone_and_in_a_batch() -> None:
    prompt = tokens(3, 4)
    alone = [generated("mamba2", prompt[row : row + 1], seed=7 + row) for row in range(3)]
    assert np.array_equal(generated("mamba2", prompt, seed=7), jnp.concatenate(alone))
    assert np.array_equal(generated("mamba2", list(prompt), seed=jnp.array([7, 8, 9])), jnp.concatenate(alone))
    assert not np.array_equal(generated("mamba2", prompt[:1], seed=8), alone[0])


@pytest.mark.parametrize("exact", [False, True], ids=["not exact", "exact"])
def test_packed_prompts_of_different_lengths_are_followed_by_the_tokens_of_each_alone(exact: bool) -> None:
    prompt, how = tokens(3, 4), {"exact": exact}
    packed = generated("hybrid", [prompt[0], prompt[1, :2], prompt[2]], seed=7, **how)
    alone = [generated("hybrid", prompt[row : row + 1, :time], seed=7 + row) for row, time in enumerate((4, 2, 4))]
    assert np.array_equal(packed, jnp.concatenate(alone))


def test_a_row_has_its_stop_token_to_the_end() -> None:
    prompt = tokens(2, 4)
    free = np.asarray(generated("mamba", prompt, seed=2))
    stop = int(free[0, 1])
    drawn, found = generated("mamba", prompt, seed=2, stop=stop, log_probabilities=True)
    for row in range(2):
        ended = free[row].tolist().index(stop) if stop in free[row] else COUNT
        assert np.array_equal(drawn[row, : ended + 1], free[row, : ended + 1])
        assert (drawn[row, ended + 1 :] == stop).all()
        assert not found[row, ended + 1 :].any()
        assert (found[row, : ended + 1] < 0).all()
    with pytest.raises(ValueError, match=r"^generate: stop is -1, expected numbers from 0 to"):
        generated("mamba", prompt, stop=-1)


def test_one_likeliest_token_is_the_likeliest() -> None:
    prompt = tokens(2, 4)
    assert np.array_equal(generated("mamba", prompt, top_k=1), generated("mamba", prompt, temperature=0))


def test_it_is_compiled_once_for_all_prompts_and_seeds() -> None:
    traced = 0

    def run(weights: Any, prompt: Any, seed: Any) -> Any:
        nonlocal traced
        traced += 1
        return nn.generate(weights, MAMBA, prompt, COUNT, dtype=jnp.bfloat16, top_p=0.9, seed=seed)

    jitted, weights = jax.jit(run), params("mamba")
    for seed in (0, 5):
        assert np.array_equal(jitted(weights, tokens(2, 4) + seed, seed), run(weights, tokens(2, 4) + seed, seed))
    assert traced == 3


def test_no_tokens_are_generated_where_none_are_asked_for() -> None:
    drawn, found = generated("mamba", tokens(2, 4), 0, log_probabilities=True)
    assert drawn.shape == found.shape == (2, 0)


def test_after_a_token_outside_of_the_vocabulary_its_row_has_no_tokens() -> None:
    drawn, found = generated("mamba", tokens(2, 4).at[1, 2].set(-5), seed=3, log_probabilities=True)
    assert (drawn >= 0).tolist() == [[True] * COUNT, [False] * COUNT]
    assert np.isfinite(found).tolist() == [[True] * COUNT, [False] * COUNT]


def test_scores_are_those_of_the_definition_and_so_are_their_gradients() -> None:
    text, config = tokens(2, 8), CONFIGS["mamba"]

    def defined(weights: Any) -> jax.Array:
        logits = nn.language_model(weights, config, text[:, :-1])[..., : config.vocab_size] / 0.5
        return jnp.take_along_axis(jax.nn.log_softmax(logits), text[:, 1:, None], axis=-1)[..., 0]

    def scored(weights: Any) -> jax.Array:
        return nn.score(weights, config, text, temperature=0.5)

    def pulled_back(function: Callable[[Any], jax.Array]) -> Any:
        result, pull_back = jax.vjp(function, params("mamba"))
        return result, pull_back(jnp.cos(jnp.arange(14.0)).reshape(2, 7))[0]

    (result, found), (expected, exact) = (jax.jit(partial(pulled_back, each))() for each in (scored, defined))
    assert_close(result, expected)
    for name, gradient in exact.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=1e-4 * np.abs(gradient).max(), err_msg=name)


def test_the_score_of_a_token_outside_of_the_vocabulary_is_nan() -> None:
    text = tokens(1, 5).at[0, 3].set(MAMBA.vocab_size)  # a row of the padded embedding
    assert np.isnan(score(params("mamba"), MAMBA, text)).tolist() == [[False, False, True, False]]


LOGITS = jnp.array([2.0, -1.0, 0.5, 2.5, -3.0, 0.5])
GRID = 20_000
LAST = 2**32 - 1


@partial(jax.jit, static_argnums=0)
def draw(sampling: Sampling, logits: jax.Array, words: jax.Array) -> jax.Array:
    return sampling.draw(logits, words)


def shares(sampling: Sampling) -> np.ndarray:
    """The share of each token, over random words at equal distances."""
    words = jnp.array(np.linspace(0, LAST, GRID), jnp.uint32)
    return np.bincount(draw(sampling, jnp.broadcast_to(LOGITS[None], (GRID, 6)), words), minlength=6) / GRID


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_k=3), [3, 0, 2]),  # of two alike the first
        (Sampling(top_k=100), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_p=0.5), [3]),
        (Sampling(top_p=0.6), [3, 0]),
        (Sampling(top_p=1e-12), [3]),
        (Sampling(top_p=0.999999), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_k=1, top_p=0.6), [3]),
        (Sampling(temperature=0.0, top_k=3), [3]),
    ],
)
def test_tokens_have_the_shares_of_their_probabilities_among_the_likeliest(sampling: Sampling, kept: list[int]) -> None:
    expected = np.zeros(6)
    expected[kept] = np.exp(np.array(LOGITS, np.float64))[kept]
    found = shares(sampling)
    assert np.array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=3 / GRID, rtol=0)


@pytest.mark.parametrize("temperature", [1e-300, 0.5, 3.0])
def test_the_temperature_sharpens_and_flattens_them(temperature: float) -> None:
    expected = np.exp((np.array(LOGITS, np.float64) - 2.5) / temperature)
    np.testing.assert_allclose(shares(Sampling(temperature)), expected / expected.sum(), atol=3 / GRID, rtol=0)


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = jnp.array([[-jnp.inf, 1.0, -jnp.inf, 1.0, -jnp.inf]] * 4)
    words = jnp.array([0, 2**31 - 1, 2**31, LAST], jnp.uint32)
    assert draw(Sampling(), logits, words).tolist() == [1, 1, 3, 3]
    assert draw(Sampling(top_k=3, top_p=0.99), logits, words).tolist() == [1, 1, 3, 3]


def test_a_log_probability_has_the_same_bits_in_any_order_of_the_vocabulary() -> None:
    logits = 4 * jax.random.normal(jax.random.key(0), (1, 5000))
    found = jax.jit(Sampling().log_probabilities)
    reference = np.array(jax.nn.log_softmax(logits))[0, 17]
    for seed in range(5):
        order = jax.random.permutation(jax.random.key(seed), 5000)
        one = found(logits[:, order], jnp.argmax(order == 17)[None])
        assert one == found(logits, jnp.array([17]))
        np.testing.assert_allclose(one, reference, rtol=1e-6)


def test_random_words_depend_on_seed_and_number_alone() -> None:
    words = jax.jit(lambda seeds, number: words_at(keys_of(seeds), number))
    table = np.array([words(jnp.arange(5, dtype=jnp.uint32), number) for number in range(4)])
    assert len(np.unique(table)) == 20
    assert words(jnp.array([3], jnp.uint32), 2).tolist() == [table[2, 3]]


def test_seeds_of_all_forms_count_up_alike() -> None:
    forms = (LAST, np.array(LAST), jnp.array(LAST, jnp.uint32), np.array([LAST, 0, 1]))
    assert all(seeds_of("generate", form, 3).tolist() == [LAST, 0, 1] for form in forms)


NOTHING: Any = {}
ERRORS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no config": ({"config": NOTHING}, TypeError, "config is dict, expected a MambaConfig"),
    "no parameters": ({"params": NOTHING}, ValueError, r"params\['backbone.embedding.weight'\] is missing"),
    "prompt of floats": ({"prompt": jnp.ones((2, 3))}, TypeError, "prompt has dtype float32, expected int32"),
    "prompt of one axis": ({"prompt": tokens(2, 3)[0]}, ValueError, r"prompt has shape \(3,\), expected \(batch, time"),
    "empty prompt": (
        {"prompt": tokens(2, 0)},
        ValueError,
        r"prompt has shape \(2, 0\), expected \(batch, at least one",
    ),
    "no sequences": ({"prompt": []}, ValueError, r"prompt is \[\], expected at least one sequence"),
    "lists of numbers": ({"prompt": [[1], [2]]}, TypeError, r"prompt\[0\] is list, expected a jax.Array"),
    "sequence with a batch": ({"prompt": [tokens(2, 3)]}, ValueError, r"prompt\[0\] has shape .* expected \(time,\)"),
    "empty sequence": ({"prompt": [tokens(1, 0)[0]]}, ValueError, r"prompt\[0\] has shape \(0,\), expected \(at least"),
    "fewer tokens than none": ({"count": -1}, ValueError, "count is -1, expected an integer of at least 0"),
    "negative temperature": ({"temperature": -1.0}, ValueError, "temperature is -1.0, expected a finite number"),
    "temperature in words": ({"temperature": "hot"}, TypeError, "temperature is str, expected a float"),
    "top_k of none": ({"top_k": 0}, ValueError, "top_k is 0, expected an integer of at least 1"),
    "top_p of nothing": ({"top_p": 0.0}, ValueError, "top_p is 0.0, expected a number above 0, 1 at most"),
    "top_p above all": ({"top_p": 1.5}, ValueError, "top_p is 1.5"),
    "negative seed": ({"seed": -1}, ValueError, r"seed is -1, expected numbers from 0 to 2\^32 - 1"),
    "large seed": ({"seed": np.array([1, 2**32])}, ValueError, "seed is 4294967296"),
    "seeds of another batch": ({"seed": jnp.arange(3)}, ValueError, r"seed has shape \(3,\), expected \(batch=2,\)"),
    "seed of floats": ({"seed": jnp.ones(2)}, TypeError, "seed is .*, expected an integer or an array of integers"),
    "a bool as seed": ({"seed": True}, TypeError, "seed is bool"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_bad_input_is_refused_by_name(case: str) -> None:
    given, error, text = ERRORS[case]
    arguments: Any = {"params": params("mamba"), "config": MAMBA, "prompt": tokens(2, 3), "count": 1} | given
    with pytest.raises(error, match=f"^generate: {text}"):
        nn.generate(**arguments)


def test_scores_refuse_what_they_cannot_use() -> None:
    with pytest.raises(ValueError, match=r"^score: tokens has shape \(2, 0\), expected \(batch, at least one token\)"):
        nn.score(params("mamba"), MAMBA, tokens(2, 0))
    with pytest.raises(ValueError, match=r"^score: temperature is 0, expected more than 0"):
        nn.score(params("mamba"), MAMBA, tokens(2, 3), temperature=0)


def test_a_window_is_refused_with_packed_sequences_and_by_layers_that_are_not_exact() -> None:
    own, text = params("mamba2"), tokens(2, 3)
    bounds, state = jnp.array([0, 3], jnp.int32), nn.initial_state(MAMBA2, 1)
    _, state = jax.eval_shape(partial(nn.language_model, config=MAMBA2, exact=True), own, tokens=text[:1], state=state)
    again = partial(nn.language_model, config=MAMBA2, cu_seqlens=bounds, exact=True)
    with pytest.raises(ValueError, match=r"^mamba2: cu_seqlens is 'boundaries', expected None, since the state has"):
        jax.eval_shape(again, own, tokens=text[:1], state=state)
    with pytest.raises(ValueError, match=r"^mamba2_step: state.window is 'a window', expected None, since the layer"):
        jax.eval_shape(partial(nn.step, config=MAMBA2), own, tokens=text[:1, 0], state=state)
