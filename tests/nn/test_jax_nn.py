"""`retrograd.jax.nn` is PyTorch's model as pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax_models import CPU, B, Draw, T, assert_drawn_alike, assert_right, assert_right_logits, drawn, with_gradients

import retrograd.nn
from retrograd.jax import nn
from retrograd.jax.nn.embedding import embed
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import Arrays
from retrograd.testing.jax_call import to_torch

MAMBA1 = nn.Mamba1Config(d_state=4)
CONFIG = nn.MambaConfig(d_model=16, n_layer=2, vocab_size=29, ssm_cfg=MAMBA1)
OTHER = replace(
    CONFIG,
    ssm_cfg=replace(MAMBA1, bias=True, conv_bias=False, dt_init="constant"),
    tie_embeddings=False,
    residual_in_fp32=False,
)
ONE = replace(CONFIG, n_layer=1)  # compiled in half the time
WIDE = [replace(config, d_model=64, n_layer=4) for config in (CONFIG, OTHER)]  # some hundred numbers of each kind


@pytest.fixture(scope="module")
def first_seed() -> int:
    """The seed of the inputs: new in every run and shown by a failing test."""
    seed = int(np.random.SeedSequence().generate_state(1)[0]) % 10**6
    print(f"inputs drawn from seed {seed}")
    return seed


@pytest.fixture(scope="module")
def draws(first_seed: int) -> list[Draw]:
    return drawn(CONFIG, first_seed)


@pytest.fixture(scope="module")
def draws_of_one(first_seed: int) -> list[Draw]:
    return drawn(ONE, first_seed)


def test_logits_and_gradients_are_those_of_the_pytorch_model(draws: list[Draw]) -> None:
    assert_right(lambda params, tokens: nn.language_model(params, CONFIG, tokens), draws)


def test_so_are_those_of_a_model_with_the_other_options(seed: int) -> None:
    draws = drawn(OTHER, seed)
    assert_right(lambda params, tokens: nn.language_model(params, OTHER, tokens), draws)


@pytest.mark.parametrize("residual_in_fp32", [True, False])
def test_bfloat16_activations_beside_float32_parameters_keep_the_error_budget(
    residual_in_fp32: bool, seed: int
) -> None:
    config = replace(ONE, residual_in_fp32=residual_in_fp32)
    draws = drawn(config, seed, torch.bfloat16)
    assert_right(lambda params, tokens: nn.language_model(params, config, tokens, dtype=jnp.bfloat16), draws)


def test_a_sequence_in_two_pieces_has_logits_and_gradients_of_the_whole(draws_of_one: list[Draw]) -> None:
    def run(params: Any, tokens: jax.Array) -> jax.Array:
        first, state = nn.language_model(params, ONE, tokens[:, :5], nn.initial_state(ONE, B))
        then, _ = nn.language_model(params, ONE, tokens[:, 5:], state)
        return jnp.concatenate((first, then), axis=1)

    assert_right(run, draws_of_one)


def test_packed_sequences_in_two_pieces_have_the_logits_of_each_alone(draws_of_one: list[Draw]) -> None:
    """There is an empty sequence between them."""

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        state = nn.initial_state(ONE, B + 1)
        pieces = []
        for piece in (tokens[:, :5], tokens[:, 5:]):
            length = piece.shape[1]
            starts = jnp.array([0, length, length, 2 * length], jnp.int32)
            logits, state = nn.language_model(params, ONE, piece.reshape(1, -1), state, cu_seqlens=starts)
            pieces.append(logits.reshape(B, length, -1))
        return jnp.concatenate(pieces, axis=1)

    assert_right_logits(run, draws_of_one)


def test_packed_sequences_have_logits_and_gradients_of_each_alone(draws_of_one: list[Draw]) -> None:
    starts = jnp.array([0, T, 2 * T], jnp.int32)

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        return nn.language_model(params, ONE, tokens.reshape(1, -1), cu_seqlens=starts).reshape(B, T, -1)

    assert_right(run, draws_of_one)


def test_steps_of_generation_give_the_logits_of_the_whole(draws: list[Draw]) -> None:
    def run(params: Any, tokens: jax.Array) -> jax.Array:
        logits, state = nn.language_model(params, CONFIG, tokens[:, :3], nn.initial_state(CONFIG, B))

        def step(state: Any, token: jax.Array) -> Any:
            output, state = nn.step(params, CONFIG, token, state)
            return state, output

        _, then = jax.lax.scan(step, state, tokens[:, 3:].T)
        return jnp.concatenate((logits, then.swapaxes(0, 1)), axis=1)

    assert_right_logits(run, draws)


def test_a_checkpointed_block_has_the_same_gradients(draws: list[Draw]) -> None:
    layer = jax.checkpoint(nn.block, static_argnums=(1, 2))

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        x, stream = embed(params["backbone.embedding.weight"], tokens), None
        for number in range(CONFIG.n_layer):
            prefix = f"backbone.layers.{number}."
            own = {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}
            x, stream, _ = layer(own, CONFIG, number, x, stream)
        features = retrograd.jax.rms_norm(x, params["backbone.norm_f.weight"], residual=stream, eps=1e-5)
        return features @ params["backbone.embedding.weight"].T

    assert_right(run, draws)


def test_a_jitted_step_of_adam_learns_a_batch_and_repeats_to_the_bit() -> None:
    tokens = jax.random.randint(jax.random.key(1), (B, T + 1), 0, ONE.vocab_size)

    def loss(params: Any) -> jax.Array:
        logits = nn.language_model(params, ONE, tokens[:, :-1], dtype=jnp.bfloat16).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1).mean()

    @jax.jit
    def train(number: jax.Array, params: Any, mean: Any, square: Any) -> Any:
        value, g = jax.value_and_grad(loss)(params)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, g)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, g)
        fixed_mean, fixed_square = 1 - 0.9**number, 1 - 0.99**number
        moved = jax.tree.map(
            lambda p, m, s: p - 0.01 * m / fixed_mean / (jnp.sqrt(s / fixed_square) + 1e-8), params, mean, square
        )
        return value, moved, mean, square

    def trained() -> tuple[list[float], Arrays]:
        params = nn.init(jax.random.key(0), ONE)
        mean = square = jax.tree.map(jnp.zeros_like, params)
        values = []
        for number in range(1, 31):
            value, params, mean, square = train(jnp.float32(number), params, mean, square)
            values.append(float(value))
        return values, {name: to_torch(p, CPU) for name, p in params.items()}

    values, params = trained()
    assert abs(values[0] - math.log(ONE.padded_vocab_size)) < 0.2  # the loss of a uniform guess at first
    assert values[-1] < values[0] / 2
    assert_same_bits(trained()[1], params, "trained again")


def test_the_gradient_has_no_scattered_additions() -> None:
    """XLA compiles them to atomic additions on a GPU, whose order is not fixed."""
    params = jax.eval_shape(partial(nn.init, config=CONFIG), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)
    run = with_gradients(lambda params, tokens: nn.language_model(params, CONFIG, tokens))
    text = run.lower(params, tokens, jax.ShapeDtypeStruct((B, T, CONFIG.padded_vocab_size), jnp.float32)).as_text()  # type: ignore[attr-defined]
    assert "scatter" not in text


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_gradient_of_the_embedding_is_the_sum_over_each_tokens_places(dtype: Any, seed: int) -> None:
    """The sum is in float32 for activations of any dtype: small integers are exact then, unlike in bfloat16."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(-2, 12, size=(3, 400))  # some tokens are outside the table, and some rows do not occur
    gradient = generator.integers(-9, 10, size=(3, 400, 5)).astype(np.float32)
    weight = jnp.zeros((16, 5))
    x, pull_back = jax.vjp(lambda weight: embed(weight, jnp.array(tokens)).astype(dtype), weight)
    inside = tokens >= 0
    assert np.array_equal(np.isnan(x).any(-1), ~inside)
    expected = np.zeros((16, 5), np.float32)
    np.add.at(expected, tokens[inside], gradient[inside])
    assert np.array_equal(pull_back(jnp.array(gradient, dtype))[0], expected)


def test_forward_mode_through_the_embedding_is_refused() -> None:
    weight, tokens = jnp.ones((5, 4)), jnp.array([0, 3])
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda weight: embed(weight, tokens), (weight,), (weight,))


def test_a_gradient_through_the_embedding_has_a_gradient() -> None:
    weight, tokens = jax.random.normal(jax.random.key(0), (5, 4)), jnp.array([[0, 3], [3, 1]])

    def penalty(rows: Callable[[jax.Array], jax.Array], weight: jax.Array) -> jax.Array:
        return (jax.grad(lambda weight: (rows(weight) ** 3).sum())(weight) ** 2).sum()

    found = jax.grad(partial(penalty, lambda weight: embed(weight, tokens)))(weight)
    expected = jax.grad(partial(penalty, lambda weight: weight[tokens]))(weight)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_token_outside_of_the_vocabulary_gives_nan_from_there_on() -> None:
    params = nn.init(jax.random.key(0), ONE)
    tokens = jnp.array([[1, 2, ONE.padded_vocab_size, 3], [1, 2, -1, 3], [1, 2, 3, 4]])
    unknown = jnp.isnan(jax.jit(nn.language_model, static_argnums=1)(params, ONE, tokens)).any(-1)
    assert unknown.tolist() == [[False, False, True, True], [False, False, True, True], [False] * 4]


@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=["default", "other"])
def test_names_and_shapes_are_those_of_the_state_dict(config: nn.MambaConfig) -> None:
    drawn = jax.eval_shape(partial(nn.init, config=config), jax.random.key(0))
    weights = retrograd.nn.LanguageModel(config, device="meta").state_dict()
    if config.tie_embeddings:
        del weights["lm_head.weight"]
    assert {name: p.shape for name, p in drawn.items()} == {name: tuple(w.shape) for name, w in weights.items()}


@pytest.mark.parametrize("config", WIDE, ids=["default", "other"])
def test_init_draws_from_the_distributions_of_the_modules(config: nn.MambaConfig) -> None:
    assert_drawn_alike(config)


@pytest.mark.parametrize("config", WIDE, ids=["default", "other"])
def test_init_draws_the_same_float32_where_jax_has_64_bits(config: nn.MambaConfig) -> None:
    expected = nn.init(jax.random.key(0), config)
    with jax.enable_x64(True):
        drawn = nn.init(jax.random.key(0), config)
    for name, array in drawn.items():
        assert array.dtype == jnp.float32, name
        assert np.array_equal(array, expected[name]), name


def test_no_two_parameters_are_drawn_alike() -> None:
    params = nn.init(jax.random.key(0), WIDE[1])
    drawn = [np.ravel(p)[:8] / np.abs(p).max() for p in params.values() if np.ptp(p[..., :1]) > 0]
    for place, first in enumerate(drawn):
        assert not any(np.allclose(first, other) for other in drawn[:place])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=["default", "other"])
def test_checkpoints_pass_between_the_frameworks_to_the_bit(
    config: nn.MambaConfig, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = retrograd.nn.LanguageModel(config, dtype=dtype)
    retrograd.nn.save(model, tmp_path / "torch")
    params = nn.from_torch(retrograd.nn.load(tmp_path / "torch"))
    retrograd.nn.save(nn.to_torch(params, config), tmp_path / "jax")
    assert_same_bits(retrograd.nn.load(tmp_path / "jax").state_dict(), model.state_dict(), "read again")


def test_a_converted_model_shares_no_memory() -> None:
    model = retrograd.nn.LanguageModel(CONFIG)
    params = nn.from_torch(model)
    back = nn.to_torch(params, CONFIG)
    before = back.backbone.norm_f.weight.detach().clone()
    with torch.no_grad():
        model.backbone.norm_f.weight.zero_()
    assert bool((params["backbone.norm_f.weight"] == 1).all())
    with torch.no_grad():
        back.backbone.norm_f.weight.add_(1)
    assert bool((params["backbone.norm_f.weight"] == 1).all())
    assert torch.equal(before, torch.ones(CONFIG.d_model))


def test_a_model_is_converted_whole_or_refused() -> None:
    model = retrograd.nn.LanguageModel(ONE)
    compiled: Any = torch.compile(model)
    assert nn.from_torch(compiled).keys() == nn.from_torch(model).keys()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight + 1)
    with pytest.raises(ValueError, match=r"from_torch: lm_head.weight is not backbone.embedding.weight"):
        nn.from_torch(model)
    other: Any = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="from_torch: model is Linear, expected a LanguageModel"):
        nn.from_torch(other)


@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_bfloat16_parameters_run_with_activations_of_any_dtype(dtype: Any) -> None:
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), nn.init(jax.random.key(0), ONE))
    run = jax.jit(nn.language_model, static_argnums=1, static_argnames="dtype")
    logits = run(params, ONE, jnp.ones((B, T), int), dtype=dtype)
    assert logits.dtype == (dtype or jnp.bfloat16)
    assert bool(jnp.isfinite(logits).all())


def test_the_state_has_the_dtypes_that_a_loop_needs() -> None:
    """`lax.scan` requires that a step returns the dtypes that it receives."""
    params = nn.init(jax.random.key(0), CONFIG)
    before = nn.initial_state(CONFIG, B, jnp.bfloat16)
    _, after = nn.step(params, CONFIG, jnp.ones(B, int), before, dtype=jnp.bfloat16)
    assert jax.tree.map(lambda a: a.dtype, after) == jax.tree.map(lambda a: a.dtype, before)


def test_an_empty_sequence_leaves_the_state_and_has_gradients_of_zero() -> None:
    params = nn.init(jax.random.key(0), ONE)
    none, before = jnp.zeros((B, 0), int), nn.initial_state(ONE, B)
    logits, after = jax.jit(nn.language_model, static_argnums=1)(params, ONE, none, before)
    assert logits.shape == (B, 0, ONE.padded_vocab_size)
    assert all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))
    gradients = jax.jit(jax.grad(lambda params: nn.language_model(params, ONE, none).sum()))(params)
    assert not any(bool(g.any()) for g in gradients.values())


SHAPES = jax.eval_shape(partial(nn.init, config=CONFIG), jax.random.key(0))
PARAMS: dict[str, Any] = {name: np.zeros(shape.shape, np.float32) for name, shape in SHAPES.items()}
NAME = "backbone.layers.1.mixer.x_proj.weight"
TOKENS: Any = np.zeros((B, T), np.int32)
STATE = nn.initial_state(CONFIG, B)
NOTHING: Any = {}
PAIR: Any = (1, 2)
U: Any = np.zeros((B, T, CONFIG.d_model), np.float32)
BLOCK = {n.removeprefix("backbone.layers.0."): p for n, p in PARAMS.items() if n.startswith("backbone.layers.0.")}
MIXER = {n.removeprefix("mixer."): p for n, p in BLOCK.items() if n.startswith("mixer.")}


def forward(params: Any = PARAMS, config: Any = CONFIG, tokens: Any = TOKENS, state: Any = None, **options: Any) -> Any:
    return nn.language_model(params, config, tokens, state, **options)


def step(tokens: Any, state: Any) -> Any:
    params: Any = PARAMS
    return nn.step(params, CONFIG, tokens, state)


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "missing parameter": (
        lambda: forward({n: p for n, p in PARAMS.items() if n != NAME}),
        ValueError,
        rf"language_model: params\['{NAME}'\] is missing, expected an array of shape \(9, 32\)",
    ),
    "unknown parameter": (
        lambda: forward(PARAMS | {"lm_head.weight": PARAMS["backbone.embedding.weight"]}),
        ValueError,
        r"language_model: params\['lm_head.weight'\] is not a parameter of this config",
    ),
    "transposed parameter": (
        lambda: forward(PARAMS | {NAME: PARAMS[NAME].T}),
        ValueError,
        rf"language_model: params\['{NAME}'\] has shape \(32, 9\), expected \(9, 32\)",
    ),
    "parameter of integers": (lambda: forward(PARAMS | {NAME: PARAMS[NAME].astype(int)}), TypeError, "has dtype int64"),
    "parameter of PyTorch": (
        lambda: forward(PARAMS | {NAME: torch.zeros(PARAMS[NAME].shape)}),
        TypeError,
        "is Tensor, expected a jax.Array",
    ),
    "nested parameters": (lambda: forward({"backbone": PARAMS}), ValueError, "'backbone.embedding.weight'] is missing"),
    "parameters in a list": (lambda: forward(list(PARAMS.values())), TypeError, "params is list, expected a dict"),
    "config first": (
        lambda: forward(CONFIG, PARAMS),
        TypeError,
        "config is dict, expected a MambaConfig, after",
    ),
    "init without a config": (lambda: nn.init(jax.random.key(0), NOTHING), TypeError, "init: config is dict"),
    "tokens of floats": (
        lambda: forward(tokens=TOKENS.astype(float)),
        TypeError,
        "tokens has dtype float64",
    ),
    "tokens in a list": (lambda: forward(tokens=[[1, 2]]), TypeError, "tokens is list, expected a jax.Array"),
    "tokens without a batch": (
        lambda: forward(tokens=TOKENS[0]),
        ValueError,
        r"expected \(batch, time\)",
    ),
    "steps with time": (
        lambda: nn.step(PARAMS, CONFIG, TOKENS, STATE),
        ValueError,
        r"step: tokens has shape .* \(batch,\)",
    ),
    "step without a state": (lambda: step(TOKENS[:, 0], None), TypeError, "step: state is NoneType"),
    "a layer's state alone": (lambda: forward(state=STATE[0]), TypeError, "state is MambaState, expected a sequence"),
    "states of too few layers": (
        lambda: forward(state=STATE[:1]),
        ValueError,
        "1 layers, expected n_layer=2",
    ),
    "states of another kind": (lambda: forward(state=[None, None]), TypeError, r"state\[0\] is NoneType"),
    "states of nothing": (
        lambda: forward(state=[nn.MambaState(NOTHING, NOTHING)] * 2),
        TypeError,
        r"mamba: state.conv is dict, expected a jax.Array",
    ),
    "states of another batch": (
        lambda: forward(state=nn.initial_state(CONFIG, B + 1)),
        ValueError,
        r"initial_state has shape \(3, 32, 3\), expected \(batch=2, channels=32, width-1=3\)",
    ),
    "a step's of another batch": (
        lambda: step(TOKENS[:1, 0], STATE),
        ValueError,
        r"causal_conv1d_update: state has shape \(2, 32, 3\), expected \(batch=1, channels=32, width-1=3\)",
    ),
    "packing of a batch": (
        lambda: forward(cu_seqlens=jnp.array([0, T], jnp.int32)),
        ValueError,
        r"^language_model: tokens has shape \(2, 13\), expected \(1, time\), since cu_seqlens is given$",
    ),
    "activations of integers": (lambda: forward(dtype=jnp.int32), TypeError, "x has dtype int32"),
    "a block of another width": (lambda: nn.block(BLOCK, CONFIG, 0, U[..., 1:], None), ValueError, "weight has shape"),
    "a mixer of another width": (
        lambda: nn.mamba(MIXER, MAMBA1, U[..., 1:]),
        ValueError,
        r"mamba: u has shape \(2, 13, 15\), expected \(batch, time, d_model=16\)",
    ),
    "a mixer's state as a pair": (lambda: nn.mamba(MIXER, MAMBA1, U, PAIR), TypeError, "mamba: state is tuple"),
    "conversion of a missing parameter": (lambda: nn.to_torch({}, CONFIG), ValueError, "to_torch: params.* is missing"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_bad_input_is_refused_by_name(case: str) -> None:
    call, error, text = ERRORS[case]
    with pytest.raises(error, match=text):
        call()
