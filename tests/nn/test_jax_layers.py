"""Models of Mamba-2, attention and gated MLPs in `retrograd.jax.nn`, alone and mixed."""

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
from jax_models import DRAWS, B, Draw, T, assert_drawn_alike, assert_right, assert_right_logits, drawn, with_gradients

import retrograd.jax
import retrograd.nn
from retrograd.jax import nn
from retrograd.jax.nn.embedding import embed
from retrograd.jax.nn.rotary import rotated
from retrograd.testing.compare import assert_same_bits

PLAIN = nn.Mamba2Config(d_state=4, headdim=8)
# Every other option.
OTHER = nn.Mamba2Config(
    d_state=4,
    d_conv=3,
    headdim=4,
    d_ssm=16,
    ngroups=2,
    D_has_hdim=True,
    norm_before_gate=True,
    dt_limit=(0.01, 0.2),
    conv_bias=False,
    bias=True,
)
ROTATED = nn.AttentionConfig(num_heads=4, num_heads_kv=2, rotary_emb_dim=4)
WINDOW = nn.AttentionConfig(
    num_heads=4,
    num_heads_kv=2,
    head_dim=6,
    mlp_dim=8,
    out_proj_bias=False,
    softmax_scale=0.3,
    d_conv=3,
    rotary_emb_dim=4,
    rotary_emb_base=100.0,
    rotary_emb_interleaved=True,
    qk_norm=True,
    window=6,
)
MAMBA2 = nn.MambaConfig(d_model=16, n_layer=1, vocab_size=29, ssm_cfg=PLAIN)
ATTENTION = replace(MAMBA2, attn_layer_idx=(0,), attn_cfg=ROTATED)
HYBRID = nn.MambaConfig(
    d_model=16,
    n_layer=2,
    vocab_size=29,
    d_intermediate=24,
    ssm_cfg=OTHER,
    attn_layer_idx=(1,),
    attn_cfg=WINDOW,
    tie_embeddings=False,
    residual_in_fp32=False,
)
MORE = {
    "only a gate": replace(MAMBA2, ssm_cfg=replace(PLAIN, rmsnorm=False)),
    "attention between Mamba-1": replace(ATTENTION, n_layer=3, attn_layer_idx=(1,), ssm_cfg=nn.Mamba1Config(d_state=4)),
    "one key head": replace(ATTENTION, attn_cfg=nn.AttentionConfig(num_heads=4, num_heads_kv=1, qkv_proj_bias=False)),
}
# The gradient jumps at the ends of dt_limit, which a delta in bfloat16 may cross.
WITHOUT_LIMIT = replace(HYBRID, ssm_cfg=replace(OTHER, dt_limit=(0.0, math.inf)))
# Some hundred numbers of each kind.
WIDE = [
    replace(MAMBA2, d_model=64, n_layer=4, ssm_cfg=replace(PLAIN, headdim=1)),
    replace(
        HYBRID,
        d_model=64,
        n_layer=4,
        ssm_cfg=replace(OTHER, d_ssm=None, headdim=1, conv_init=0.3),
        attn_cfg=replace(WINDOW, head_dim=32),
    ),
]


@pytest.fixture(scope="module")
def first_seed() -> int:
    """The seed of the inputs: new in every run and shown by a failing test."""
    seed = int(np.random.SeedSequence().generate_state(1)[0]) % 10**6
    print(f"inputs drawn from seed {seed}")
    return seed


@pytest.fixture(scope="module")
def draws(first_seed: int) -> list[Draw]:
    return drawn(HYBRID, first_seed, draws=2 * DRAWS)  # there are few heads, and so few numbers of A_log and dt_bias


def model(config: nn.MambaConfig) -> Callable[[Any, jax.Array], Any]:
    return lambda params, tokens: nn.language_model(params, config, tokens)


@pytest.mark.parametrize("config", [MAMBA2, ATTENTION], ids=["mamba2", "attention"])
def test_logits_and_gradients_are_those_of_the_pytorch_model(config: nn.MambaConfig, seed: int) -> None:
    assert_right(model(config), drawn(config, seed, draws=2 * DRAWS))


def test_so_are_those_of_a_hybrid_with_the_other_options(draws: list[Draw]) -> None:
    assert_right(model(HYBRID), draws)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_so_are_those_of_more_models(name: str, seed: int) -> None:
    assert_right(model(MORE[name]), drawn(MORE[name], seed))


@pytest.mark.parametrize(
    "config", [WITHOUT_LIMIT, pytest.param(MAMBA2, marks=pytest.mark.slow)], ids=["hybrid", "mamba2"]
)
def test_bfloat16_activations_beside_float32_parameters_keep_the_error_budget(
    config: nn.MambaConfig, seed: int
) -> None:
    draws = drawn(config, seed, torch.bfloat16, 4 * DRAWS)  # both frameworks round, and each elsewhere
    assert_right(lambda params, tokens: nn.language_model(params, config, tokens, dtype=jnp.bfloat16), draws)


def test_a_sequence_in_two_pieces_has_logits_and_gradients_of_the_whole(draws: list[Draw]) -> None:
    def run(params: Any, tokens: jax.Array) -> jax.Array:
        first, state = nn.language_model(params, HYBRID, tokens[:, :5], nn.initial_state(HYBRID, B, capacity=T + 2))
        then, _ = nn.language_model(params, HYBRID, tokens[:, 5:], state)
        return jnp.concatenate((first, then), axis=1)

    assert_right(run, draws)


def test_packed_sequences_have_logits_and_gradients_of_each_alone(draws: list[Draw]) -> None:
    starts = jnp.array([0, T, 2 * T], jnp.int32)

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        return nn.language_model(params, HYBRID, tokens.reshape(1, -1), cu_seqlens=starts).reshape(B, T, -1)

    assert_right(run, draws)


def test_packed_pieces_and_then_steps_give_the_logits_of_the_whole(draws: list[Draw]) -> None:
    """The sequences are at different steps, with an empty one between them and tokens of none around them.

    In the end one of them has more tokens than fit, and its results are NaN; the other's are not.
    """
    lengths = (2, 0, 5)

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        state = nn.initial_state(HYBRID, 3, capacity=T)
        tokens = jnp.stack((tokens[0], tokens[0], tokens[1]))
        pieces = []
        for begin, end in ((0, 1), (1, 2)):
            parts = [row[begin * n : end * n] for row, n in zip(tokens, lengths, strict=True)]
            packed = jnp.concatenate((tokens[1, :1], *parts, tokens[1, :2]))[None]
            starts = 1 + np.cumsum([0, *lengths], dtype=np.int32)
            logits, state = nn.language_model(params, HYBRID, packed, state, cu_seqlens=jnp.array(starts))
            pieces.append(jnp.split(logits[0], starts, axis=0)[1:4])

        def step(carry: Any, number: jax.Array) -> Any:
            state, place = carry
            token = jnp.take_along_axis(tokens, place[:, None].clip(max=T - 1), axis=1)[:, 0]
            output, state = nn.step(params, HYBRID, token, state)
            return (state, place + 1), output

        place = 2 * jnp.array(lengths, jnp.int32)
        _, then = jax.lax.scan(step, (state, place), jnp.arange(T - 2 * lengths[0]))
        late = then[T - 2 * lengths[2] :, 2]
        # The logits of a sequence that is past its capacity are NaN in every later step.
        good = jnp.isnan(late).all()
        rows = [jnp.concatenate((pieces[0][row], pieces[1][row], then[: T - 2 * lengths[row], row])) for row in (0, 2)]
        return jnp.where(good, jnp.stack(rows), jnp.nan)

    assert_right_logits(run, draws)


def test_steps_past_the_capacity_are_nan_in_their_sequence_alone() -> None:
    params = nn.init(jax.random.key(0), HYBRID)
    run = jax.jit(nn.language_model, static_argnums=1)
    tokens, starts = jnp.ones((1, 7), int), jnp.array([0, 5, 7], jnp.int32)
    logits, state = run(params, HYBRID, tokens, nn.initial_state(HYBRID, 2, capacity=4), cu_seqlens=starts)
    assert jnp.isnan(logits).any(-1).tolist() == [[True] * 5 + [False] * 2]
    logits, _ = run(params, HYBRID, tokens[:, :2].repeat(2, 0), state)
    assert jnp.isnan(logits).any(-1).tolist() == [[True] * 2, [False] * 2]


def test_a_state_is_not_modified_and_can_be_continued_in_several_ways() -> None:
    params = nn.init(jax.random.key(0), HYBRID)
    run = jax.jit(nn.step, static_argnums=1)
    _, before = run(params, HYBRID, jnp.array([3, 4]), nn.initial_state(HYBRID, 2, capacity=4))
    one, _ = run(params, HYBRID, jnp.array([5, 6]), before)
    other, _ = run(params, HYBRID, jnp.array([7, 8]), before)
    again, _ = run(params, HYBRID, jnp.array([5, 6]), before)
    assert bool((one == again).all())
    assert not bool((one == other).all())


def test_a_state_can_be_donated() -> None:
    params, state = nn.init(jax.random.key(0), HYBRID), nn.initial_state(HYBRID, 2, capacity=4)
    tokens = jnp.array([3, 4])
    expected, _ = jax.jit(nn.step, static_argnums=1)(params, HYBRID, tokens, state)
    logits, _ = jax.jit(nn.step, static_argnums=1, donate_argnums=3)(params, HYBRID, tokens, state)
    assert bool((logits == expected).all())
    assert all(array.is_deleted() for array in jax.tree.leaves(state))


def test_an_empty_sequence_leaves_the_state_and_has_gradients_of_zero() -> None:
    params = nn.init(jax.random.key(0), HYBRID)
    none, before = jnp.zeros((B, 0), int), nn.initial_state(HYBRID, B, capacity=3)
    logits, after = jax.jit(nn.language_model, static_argnums=1)(params, HYBRID, none, before)
    assert logits.shape == (B, 0, HYBRID.padded_vocab_size)
    assert all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))
    gradients = jax.jit(jax.grad(lambda params: nn.language_model(params, HYBRID, none).sum()))(params)
    assert not any(bool(g.any()) for g in gradients.values())


def test_an_empty_batch_has_empty_results() -> None:
    params = nn.init(jax.random.key(0), HYBRID)
    run = jax.jit(nn.language_model, static_argnums=1)
    logits, state = run(params, HYBRID, jnp.zeros((0, 3), int), nn.initial_state(HYBRID, 0, capacity=3))
    assert logits.shape == (0, 3, HYBRID.padded_vocab_size)
    logits, _ = jax.jit(nn.step, static_argnums=1)(params, HYBRID, jnp.zeros(0, int), state)
    assert logits.shape == (0, HYBRID.padded_vocab_size)


def test_the_state_has_the_dtypes_that_a_loop_needs() -> None:
    """`lax.scan` requires that a step returns the dtypes that it receives."""
    params = jax.eval_shape(partial(nn.init, config=HYBRID), jax.random.key(0))
    before = nn.initial_state(HYBRID, B, jnp.bfloat16, capacity=3)
    step = partial(nn.step, dtype=jnp.bfloat16)
    _, after = jax.eval_shape(lambda params: step(params, HYBRID, jnp.ones(B, int), before), params)
    form = partial(jax.tree.map, lambda array: (array.shape, array.dtype))
    assert form(after) == form(before)


def test_a_checkpointed_block_has_the_same_gradients(draws: list[Draw]) -> None:
    layer = jax.checkpoint(nn.block, static_argnums=(1, 2))

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        x, stream = embed(params["backbone.embedding.weight"], tokens), None
        for number in range(HYBRID.n_layer):
            prefix = f"backbone.layers.{number}."
            own = {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}
            x, stream, _ = layer(own, HYBRID, number, x, stream)
        features = retrograd.jax.rms_norm(x, params["backbone.norm_f.weight"], residual=stream, eps=1e-5)
        return features @ params["lm_head.weight"].T

    assert_right(run, draws)


def test_the_gradient_through_a_state_has_no_scattered_additions() -> None:
    """XLA compiles them to atomic additions on a GPU, whose order is not fixed."""
    params = jax.eval_shape(partial(nn.init, config=HYBRID), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)

    def run(params: Any, tokens: jax.Array) -> jax.Array:
        _, state = nn.language_model(params, HYBRID, tokens[:, :5], nn.initial_state(HYBRID, B, capacity=T))
        return nn.language_model(params, HYBRID, tokens[:, 5:], state)[0]

    gradient = jax.ShapeDtypeStruct((B, T - 5, HYBRID.padded_vocab_size), jnp.float32)
    text = str(jax.make_jaxpr(with_gradients(run))(params, tokens, gradient))
    assert "scatter[" in text
    assert "scatter-add" not in text
    assert "scatter_add" not in text


def test_late_positions_are_rotated_by_exact_angles() -> None:
    """Frequencies and angles of these numbers have no rounding errors, of which a late position makes large ones."""
    config = nn.AttentionConfig(num_heads=1, rotary_emb_dim=8, rotary_emb_base=16.0)
    place = 2**20 + 1
    x = jnp.zeros((1, 1, 1, 10)).at[..., :4].set(1.0)
    turned = rotated(x, jnp.full((1, 1), place), config)[0, 0, 0]
    angle = place / np.array([1, 2, 4, 8])
    np.testing.assert_allclose(turned, [*np.cos(angle), *np.sin(angle), 0, 0], atol=1e-6)


def test_names_and_shapes_are_those_of_the_state_dict() -> None:
    drawn = jax.eval_shape(partial(nn.init, config=HYBRID), jax.random.key(0))
    weights = retrograd.nn.LanguageModel(HYBRID, device="meta").state_dict()
    assert {name: p.shape for name, p in drawn.items()} == {name: tuple(w.shape) for name, w in weights.items()}


@pytest.mark.parametrize("config", WIDE, ids=["mamba2", "hybrid"])
def test_init_draws_from_the_distributions_of_the_modules(config: nn.MambaConfig) -> None:
    assert_drawn_alike(config)


def test_checkpoints_pass_between_the_frameworks_to_the_bit(tmp_path: Path) -> None:
    model = retrograd.nn.LanguageModel(HYBRID, dtype=torch.bfloat16)
    retrograd.nn.save(model, tmp_path / "torch")
    params = nn.from_torch(retrograd.nn.load(tmp_path / "torch"))
    retrograd.nn.save(nn.to_torch(params, HYBRID), tmp_path / "jax")
    assert_same_bits(retrograd.nn.load(tmp_path / "jax").state_dict(), model.state_dict(), "read again")


STATE = nn.initial_state(HYBRID, B, capacity=T)
PARAMS: dict[str, Any] = {
    name: np.zeros(p.shape, np.float32)
    for name, p in jax.eval_shape(partial(nn.init, config=HYBRID), jax.random.key(0)).items()
}
TOKENS: Any = np.zeros((B, T), np.int32)
U: Any = np.zeros((B, T, HYBRID.d_model), np.float32)
PACKED: Any = np.array([0, T], np.int32)
NOTHING: Any = None
MODEL: Any = HYBRID


def mixer(number: int) -> dict[str, Any]:
    prefix = f"backbone.layers.{number}.mixer."
    return {name.removeprefix(prefix): p for name, p in PARAMS.items() if name.startswith(prefix)}


def attend(u: Any = U, state: Any = None, params: Any = None, config: Any = WINDOW, **time: Any) -> Any:
    return nn.attention_layer(mixer(1) if params is None else params, config, u, state, **time)


def with_state(**changed: Any) -> Any:
    own: Any = STATE[1]
    return attend(state=own._replace(**changed))


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "state without a capacity": (
        lambda: nn.initial_state(HYBRID, B),
        ValueError,
        r"initial_state: capacity is None, expected the most tokens of a sequence, since layers \(1,\) are attention",
    ),
    "capacity of a layer": (
        lambda: nn.attention_layer_state(ROTATED, 16, B, capacity=0),
        ValueError,
        "attention_layer_state: capacity is 0, expected a number of steps",
    ),
    "state by a model's config": (
        lambda: nn.mamba2_state(MODEL, 16, B),
        TypeError,
        "mamba2_state: config is .*MambaConfig, expected a Mamba2Config",
    ),
    "state of heads that do not divide": (
        lambda: nn.attention_layer_state(ROTATED, 18, B, capacity=3),
        ValueError,
        "AttentionConfig: num_heads is 4, expected a divisor of d_model=18",
    ),
    "number of a block": (
        lambda: nn.block({}, HYBRID, 2, U, None),
        ValueError,
        "block: number is 2, expected a layer's, from 0 to 1",
    ),
    "state of another layer": (
        lambda: nn.language_model(PARAMS, HYBRID, TOKENS, STATE[::-1]),
        TypeError,
        r"language_model: state\[0\] is .*AttentionState, expected a Mamba2State",
    ),
    "config of another layer": (
        lambda: nn.mamba2(mixer(0), WINDOW, U),  # type: ignore[arg-type]
        TypeError,
        "mamba2: config is .*AttentionConfig, expected a Mamba2Config, after params",
    ),
    "config of a model": (lambda: attend(config=HYBRID), TypeError, "MambaConfig, expected an AttentionConfig, after"),
    "u of another width": (
        lambda: attend(U[..., 1:]),
        ValueError,
        r"attention_layer: u has shape \(2, 13, 15\), expected \(batch, time, d_model=16\)",
    ),
    "u without time": (lambda: attend(U[0]), ValueError, r"u has shape \(13, 16\), expected \(batch, time, d_model"),
    "missing parameter": (
        lambda: attend(params={"in_proj.weight": mixer(1)["in_proj.weight"]}),
        ValueError,
        r"attention_layer: params\['conv1d.bias'\] is missing, expected an array of shape \(48,\)",
    ),
    "heads that do not divide": (
        lambda: nn.mamba2(mixer(0), nn.Mamba2Config(headdim=5), U),
        ValueError,
        "Mamba2Config: headdim is 5, expected a divisor of 32 channels",
    ),
    "step without a state": (
        lambda: nn.attention_layer_step(mixer(1), WINDOW, U[:, 0], NOTHING),
        TypeError,
        "attention_layer_step: state is NoneType, expected an AttentionState",
    ),
    "step of mamba2 without a state": (
        lambda: nn.mamba2_step(mixer(0), OTHER, U[:, 0], NOTHING),
        TypeError,
        "mamba2_step: state is NoneType, expected a Mamba2State",
    ),
    "state of another batch": (
        lambda: attend(U[:1], STATE[1]),
        ValueError,
        r"state.k has shape \(2, 13, 2, 6\), expected \(batch=1, capacity, key heads=2, head size=6\)",
    ),
    "state of other heads": (
        lambda: with_state(k=jnp.zeros((B, T, 2, 5))),
        ValueError,
        r"state.k has shape \(2, 13, 2, 5\)",
    ),
    "values unlike keys": (
        lambda: with_state(v=jnp.zeros((B, T - 1, 2, 6))),
        ValueError,
        r"state.v has shape \(2, 12, 2, 6\), .* alike in k and v",
    ),
    "keys of nothing": (lambda: with_state(k=[]), TypeError, "state.k is list, expected a jax.Array"),
    "steps of floats": (
        lambda: with_state(steps=jnp.zeros(B)),
        TypeError,
        "state.steps has dtype float32, expected int32",
    ),
    "steps of a batch": (
        lambda: with_state(steps=jnp.zeros((), jnp.int32)),
        ValueError,
        r"state.steps has shape \(\), expected \(batch=2,\)",
    ),
    "no state of the convolution": (
        lambda: with_state(conv=None),
        TypeError,
        "state.conv is NoneType, expected an array",
    ),
    "packing of a batch": (
        lambda: attend(cu_seqlens=PACKED),
        ValueError,
        r"u has shape \(2, 13, 16\), expected batch=1, since cu_seqlens is given",
    ),
    "packing by floats": (
        lambda: attend(U[:1], cu_seqlens=PACKED.astype(float)),
        TypeError,
        "cu_seqlens has dtype float64, expected int32",
    ),
    "packing of nothing": (
        lambda: attend(U[:1], cu_seqlens=PACKED[:1]),
        ValueError,
        r"cu_seqlens has shape \(1,\), expected \(sequences \+ 1,\)",
    ),
    "packing of too many steps": (
        lambda: attend(U[:1], cu_seqlens=PACKED + 1),
        ValueError,
        r"attention_layer: cu_seqlens\[1\] is 14, expected numbers that do not fall, from 0 to 13",
    ),
    "MLP of another width": (
        lambda: nn.gated_mlp({"fc1.weight": U[0, :4], "fc2.weight": U[0].T[:, :2]}, U[..., 1:]),
        ValueError,
        r"gated_mlp: x has shape \(2, 13, 15\), expected \(..., d_model=16\)",
    ),
    "MLP of two widths": (
        lambda: nn.gated_mlp({"fc1.weight": U[0, :6], "fc2.weight": U[0].T[:, :2]}, U),
        ValueError,
        r"gated_mlp: params\['fc1.weight'\] has shape \(6, 16\), expected \(4, 16\)",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_bad_input_is_refused_by_name(case: str) -> None:
    call, error, text = ERRORS[case]
    with pytest.raises(error, match=text):
        call()
