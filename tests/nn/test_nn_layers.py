"""The layers of retrograd.nn: what they compute, in parts and packed, their states, initial values and errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, cast

import plain_nn
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.models.layers import MixerConfig
from retrograd.models.shapes import mixer_shapes
from retrograd.nn import (
    Attention,
    AttentionConfig,
    AttentionState,
    Block,
    GatedDeltaNet,
    GatedDeltaNetConfig,
    GatedMLP,
    Mamba,
    Mamba1Config,
    Mamba2,
    Mamba2Config,
    Mamba2State,
    Mixer,
    RMSNorm,
)

D_MODEL, CAPACITY = 16, 30
SMALL = Mamba2Config(d_state=4, headdim=8)
HEADS = AttentionConfig(num_heads=4)
CONFIGS: dict[str, MixerConfig] = {
    "mamba": Mamba1Config(d_state=4),
    "mamba2": SMALL,
    "mamba2, groups, mlp": Mamba2Config(d_state=4, headdim=4, ngroups=2, d_ssm=24, bias=True, conv_bias=False),
    "mamba2, D of channels, norm before gate": Mamba2Config(
        d_state=3, headdim=8, d_conv=3, D_has_hdim=True, norm_before_gate=True, ngroups=2
    ),
    "mamba2, without norm": Mamba2Config(d_state=4, headdim=16, rmsnorm=False, dt_limit=(0.01, 0.05), expand=3),
    "gated delta rule": GatedDeltaNetConfig(num_heads=4, num_heads_qk=2, head_dim_qk=4, head_dim_v=6),
    "gated delta rule, every option": GatedDeltaNetConfig(
        2, head_dim_qk=6, head_dim_v=3, d_conv=3, negative_eigenvalues=True, norm_eps=1e-3, conv_bias=True, bias=True
    ),
    "attention": HEADS,
    "attention, rotated halves": AttentionConfig(num_heads=4, num_heads_kv=2, head_dim=6, rotary_emb_dim=4),
    "attention, rotated pairs, norm": AttentionConfig(
        num_heads=2, num_heads_kv=1, rotary_emb_dim=8, rotary_emb_interleaved=True, rotary_emb_base=100.0, qk_norm=True
    ),
    "attention, window, conv, mlp": AttentionConfig(
        num_heads=2,
        mlp_dim=20,
        d_conv=4,
        rotary_emb_dim=2,
        window=3,
        softmax_scale=0.7,
        qkv_proj_bias=False,
        out_proj_bias=False,
    ),
}
each_layer = pytest.mark.parametrize("name", CONFIGS)


KINDS: dict[type, Callable[..., Mixer]] = {
    Mamba1Config: Mamba,
    Mamba2Config: Mamba2,
    GatedDeltaNetConfig: GatedDeltaNet,
    AttentionConfig: Attention,
}


def layer_of(config: MixerConfig, seed: int = 0) -> Mixer:
    """In float64, with parameters that are not as simple as initial ones."""
    torch.manual_seed(seed)
    layer = KINDS[type(config)](D_MODEL, config)
    with torch.no_grad():
        for parameter in layer.double().parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return layer


def features(batch: int, time: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, time, D_MODEL, generator=torch.Generator().manual_seed(seed)).double()


def same(a: Any, b: Any) -> None:
    """Two states."""
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other)


@each_layer
def test_a_layer_and_every_gradient_are_those_of_the_definition(name: str) -> None:
    layer, u = layer_of(CONFIGS[name]), features(2, 9).requires_grad_()
    weights = {key: p.detach().clone().requires_grad_() for key, p in layer.named_parameters()}
    again = u.detach().clone().requires_grad_()
    (y, state), expected = layer(u), plain_nn.mixed(weights, CONFIGS[name], again)
    assert state is None
    torch.testing.assert_close(y, expected)
    pull = torch.randn(y.shape).double()
    y.backward(pull)
    expected.backward(pull)
    torch.testing.assert_close(u.grad, again.grad)
    for key, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[key].grad)


@each_layer
def test_a_layer_has_the_names_and_shapes_of_its_config(name: str) -> None:
    layer = layer_of(CONFIGS[name])
    shapes = mixer_shapes(CONFIGS[name], D_MODEL)
    assert {key: tuple(p.shape) for key, p in layer.state_dict().items()} == shapes


@each_layer
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_a_sequence_in_two_parts_gives_what_it_gives_whole_with_its_gradients(name: str, cut: int) -> None:
    layer, u = layer_of(CONFIGS[name]), features(2, 10).requires_grad_()
    whole, last = layer(u, layer.initial_state(2, capacity=CAPACITY))
    torch.testing.assert_close(whole, layer(u)[0])
    first, middle = layer(u[:, :cut], layer.initial_state(2, capacity=CAPACITY))
    kept = type(middle)(*[t if t is None else t.clone() for t in middle])
    then, state = layer(u[:, cut:], middle)
    parts = torch.cat((first, then), 1)
    torch.testing.assert_close(parts, whole)
    same(state, last)
    same(kept, middle)  # nothing was written in place
    wanted = [u, *layer.parameters()]
    pull = torch.randn(whole.shape).double()
    expected = torch.autograd.grad(whole, wanted, pull, allow_unused=True)
    torch.testing.assert_close(torch.autograd.grad(parts, wanted, pull, allow_unused=True), expected)


@each_layer
def test_steps_give_what_the_whole_sequence_gives(name: str) -> None:
    layer, u = layer_of(CONFIGS[name]), features(3, 9)
    whole, last = layer(u, layer.initial_state(3, capacity=CAPACITY))
    _, state = layer(u[:, :2], layer.initial_state(3, capacity=CAPACITY))
    for t in range(2, 9):
        row, state = layer.step(u[:, t], state)
        torch.testing.assert_close(row, whole[:, t])
    same(state, last)


@each_layer
def test_a_layer_has_gradients_at_its_initial_state(name: str) -> None:
    layer, u = layer_of(CONFIGS[name]), features(2, 3)
    _, state = layer(features(2, 4, seed=2), layer.initial_state(2, capacity=8))
    arrays = {
        key: t.detach().requires_grad_()
        for key, t in state._asdict().items()
        if t is not None and t.dtype.is_floating_point
    }

    def call(*given: Tensor) -> Tensor:
        return layer(u, state._replace(**dict(zip(arrays, given, strict=True))))[0]

    assert torch.autograd.gradcheck(call, tuple(arrays.values()), fast_mode=True)


ENDS = [2, 7, 7, 9, 20]  # of packed sequences, one of them empty; some steps before and after belong to none


@each_layer
@pytest.mark.parametrize("continued", [False, True])
def test_a_packed_sequence_gives_what_it_gives_alone(name: str, continued: bool) -> None:
    layer, u = layer_of(CONFIGS[name]), features(1, 22)
    cu_seqlens = torch.tensor(ENDS, dtype=torch.int32)
    before = layer.initial_state(4, capacity=CAPACITY)
    if continued:  # each from another number of steps on
        _, before = layer(features(1, 12, seed=2), before, cu_seqlens=torch.tensor([0, 3, 4, 4, 12], dtype=torch.int32))
    packed, after = layer(u, before, cu_seqlens=cu_seqlens)
    if not continued:
        inside = slice(ENDS[0], ENDS[-1])
        torch.testing.assert_close(packed[:, inside], layer(u, cu_seqlens=cu_seqlens)[0][:, inside])
    for number, (start, stop) in enumerate(itertools.pairwise(ENDS)):
        of_row = [t if t is None else t[number : number + 1] for t in before]
        alone, state = layer(u[:, start:stop], type(before)(*of_row))
        torch.testing.assert_close(packed[:, start:stop], alone)
        same(type(after)(*[t if t is None else t[number : number + 1] for t in after]), state)


def test_sequences_of_a_batch_may_be_at_different_steps() -> None:
    layer = layer_of(CONFIGS["attention, rotated halves"])
    u = [features(1, time, seed=time) for time in (6, 11)]
    bounds = torch.tensor([0, 4, 13], dtype=torch.int32)
    _, state = layer(torch.cat((u[0][:, :4], u[1][:, :9]), 1), layer.initial_state(2, capacity=11), cu_seqlens=bounds)
    for t in range(2):
        rows, state = layer.step(torch.cat((u[0][:, 4 + t], u[1][:, 9 + t])), state)
        for row, own, at in zip(rows, u, (4 + t, 9 + t), strict=True):
            torch.testing.assert_close(row, layer(own)[0][0, at])
    assert state.steps.tolist() == [6, 11]


def test_steps_beyond_the_capacity_are_an_error_and_nan_where_nothing_can_be_looked_at() -> None:
    layer, u = layer_of(HEADS), features(2, 9)
    says = "Attention: state has a capacity of 8 steps, expected at least 9, to add u"
    with pytest.raises(ValueError, match=says):
        layer(u, layer.initial_state(2, capacity=8))
    bounds = torch.tensor([0, 2, 8], dtype=torch.int32)
    _, state = layer(u[:1], layer.initial_state(2, capacity=8), cu_seqlens=bounds)
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y, state = compiled(u[:, :3], state)
    assert y[0].isfinite().all()
    assert y[1].isnan().all()
    y, state = compiled(u[:, 3:5], state)
    assert y[0].isfinite().all()
    assert y[1].isnan().all()
    with pytest.raises(ValueError, match="expected at least 12"):
        layer.step(u[:, 0], state)


@each_layer
@pytest.mark.parametrize(("batch", "time"), [(0, 3), (2, 0), (0, 0)])
def test_a_batch_may_be_empty_and_so_may_its_sequences(name: str, batch: int, time: int) -> None:
    layer, u = layer_of(CONFIGS[name]), features(batch, time)
    y, state = layer(u, layer.initial_state(batch, capacity=4))
    assert y.shape == layer(u)[0].shape == (batch, time, D_MODEL)
    same(state, layer.initial_state(batch, capacity=4))  # steps are added to no sequence, or there are none


def test_what_slots_hold_after_a_sequences_end_is_not_read() -> None:
    layer, u = layer_of(CONFIGS["attention, window, conv, mlp"]), features(2, 5)
    state = layer.initial_state(2, capacity=9)
    broken = state._replace(k=torch.full_like(state.k, math.nan), v=torch.full_like(state.v, math.nan))
    assert torch.equal(layer(u, broken)[0], layer(u, state)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_layer
def test_a_layer_of_16_bits_keeps_its_rates_and_states_in_float32(name: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    layer = KINDS[type(config)](D_MODEL, config, dtype=dtype)
    wide = {key for key, p in layer.named_parameters() if p.dtype == torch.float32}
    in_float32 = {
        "mamba": {"A_log", "D"},
        "mamba2": {"A_log", "D", "dt_bias"},
        "gated delta rule": {"A_log", "dt_bias"},
    }
    assert wide == in_float32.get(name.split(",")[0], set())
    y, state = layer(features(2, 5).to(dtype), layer.initial_state(2, capacity=7))
    row, state = layer.step(features(2, 1)[:, 0].to(dtype), state)
    assert y.dtype == row.dtype == dtype
    dtypes = {"ssm": torch.float32, "recurrent": torch.float32, "steps": torch.int32}
    for key, tensor in state._asdict().items():
        assert tensor is None or tensor.dtype == dtypes.get(key, dtype)


def test_mamba2_draws_its_rates_and_steps_from_their_ranges() -> None:
    torch.manual_seed(0)
    layer = Mamba2(
        64, Mamba2Config(headdim=1, A_init_range=(2, 3), dt_min=0.01, dt_max=0.03, conv_init=0.125, bias=True)
    )
    delta = F.softplus(layer.dt_bias)
    assert 0.0099 < delta.min() < 0.012
    assert 0.027 < delta.max() < 0.0301
    assert -3 <= layer.A.min() < -2.9
    assert -2.1 < layer.A.max() <= -2
    assert 0.12 < layer.conv1d.weight.abs().max() <= 0.125
    assert torch.equal(layer.D, torch.ones(128))
    assert not layer.in_proj.bias.any()
    assert not layer.out_proj.bias.any()


def test_attention_starts_with_biases_of_zero() -> None:
    layer = Attention(D_MODEL, HEADS)
    assert not layer.in_proj.bias.any()
    assert not layer.out_proj.bias.any()


def test_a_gated_mlp_is_that_of_its_definition() -> None:
    torch.manual_seed(0)
    mlp, u = GatedMLP(D_MODEL, 24).double(), features(2, 3)
    x, gate = (u @ mlp.fc1.weight.T).split(24, -1)
    torch.testing.assert_close(mlp(u), (x * gate * torch.sigmoid(gate)) @ mlp.fc2.weight.T)
    before = mlp.fc2.weight.clone()
    mlp.divide_output(2.0)
    assert torch.equal(mlp.fc2.weight, before / 2)


def test_both_additions_of_a_block_keep_the_stream_in_float32() -> None:
    torch.manual_seed(0)
    block = Block(RMSNorm(16), Mamba2(16, SMALL), RMSNorm(16), GatedMLP(16, 24)).bfloat16()
    x = torch.randn(2, 5, 16, dtype=torch.bfloat16)
    out, stream, _ = block(x, None)
    mixed, _ = block.mixer(block.norm(x))
    assert (out.dtype, stream.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(stream, x.float() + mixed)


def broken_state(**fields: Any) -> AttentionState:
    state = cast(AttentionState, layer_of(HEADS).initial_state(2, capacity=5))
    return state._replace(**fields)


LAYER, LAYER2 = layer_of(HEADS), layer_of(SMALL)
CONVOLVED = layer_of(CONFIGS["attention, window, conv, mlp"])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda u: Mamba2(0, SMALL), ValueError, "Mamba2: d_model is 0, expected an integer of at least 1"),
        (
            lambda u: Mamba2(16, cast(Any, HEADS)),
            TypeError,
            "config is .*AttentionConfig, expected a Mamba2Config",
        ),
        (lambda u: Mamba(16, cast(Any, None)), TypeError, "Mamba: config is NoneType, expected a Mamba1Config"),
        (lambda u: Attention(16, cast(Any, 4)), TypeError, "Attention: config is int, expected an AttentionConfig"),
        (lambda u: Mamba2(16), ValueError, "Mamba2Config: headdim is 64, expected a divisor of 32 channels"),
        (
            lambda u: Attention(18, HEADS),
            ValueError,
            "AttentionConfig: num_heads is 4, expected a divisor",
        ),
        (lambda u: GatedMLP(16, 0), ValueError, "GatedMLP: channels is 0"),
        (lambda u: Block(RMSNorm(16), LAYER, RMSNorm(16)), ValueError, "Block: mlp is None, .* since norm2 is given"),
        (
            lambda u: LAYER(u[:, 0]),
            ValueError,
            r"Attention: u has shape \(2, 16\), expected \(batch, time",
        ),
        (lambda u: LAYER2(u.float()), TypeError, "Mamba2: u has dtype torch.float32, expected torch.float64"),
        (lambda u: LAYER2(u, (1, 2)), TypeError, "Mamba2: state is tuple, expected a Mamba2State"),
        (lambda u: LAYER2.step(u[:, 0], None), TypeError, "Mamba2: state is NoneType, expected a Mamba2State"),
        (
            lambda u: LAYER2(u, Mamba2State(cast(Any, None), cast(Any, None))),
            TypeError,
            "Mamba2: state.conv is NoneType, expected a torch.Tensor",
        ),
        (lambda u: LAYER2(u, LAYER2.initial_state(3)), ValueError, "initial_state has shape"),
        (lambda u: LAYER.step(u[:, 0], None), TypeError, "Attention: state is NoneType, expected an AttentionState"),
        (lambda u: LAYER.step(u, LAYER.initial_state(2, capacity=5)), ValueError, r"expected \(batch, d_model=16\)"),
        (lambda u: LAYER.initial_state(2), ValueError, "Attention: capacity is None, expected the most steps"),
        (lambda u: LAYER.initial_state(2, capacity=0), ValueError, "Attention: capacity is 0, expected an integer"),
        (
            lambda u: LAYER(u, broken_state(k=None)),
            TypeError,
            "Attention: state.k is NoneType, expected a torch",
        ),
        (
            lambda u: LAYER(u, broken_state(conv=torch.zeros(2, 48, 3))),
            TypeError,
            "Attention: state.conv is Tensor, expected None",
        ),
        (
            lambda u: CONVOLVED(u, broken_state()),
            TypeError,
            "Attention: state.conv is NoneType, expected a torch.Tensor",
        ),
        (
            lambda u: LAYER(u, broken_state(v=torch.zeros(2, 5, 4, 5))),
            ValueError,
            r"Attention: state.v has shape \(2, 5, 4, 5\), expected \(2, capacity, 4, 4\), k and v alike",
        ),
        (
            lambda u: LAYER(u[:1], broken_state()),
            ValueError,
            r"state.k has shape \(2, 5, 4, 4\), expected \(1,",
        ),
        (
            lambda u: LAYER(u, broken_state(steps=torch.zeros(2, dtype=torch.int64))),
            TypeError,
            "Attention: state.steps has dtype torch.int64, expected torch.int32",
        ),
        (
            lambda u: LAYER(u, broken_state(steps=torch.zeros(3, dtype=torch.int32))),
            ValueError,
            r"Attention: state.steps has shape \(3,\), expected \(2,\)",
        ),
        (
            lambda u: LAYER(u[:1], cu_seqlens=torch.tensor([0, 5, 3], dtype=torch.int32)),
            ValueError,
            r"Attention: cu_seqlens\[1\] is 5, expected numbers that do not fall, from 0 to 4",
        ),
        (lambda u: LAYER(u[:1], cu_seqlens=torch.tensor([0.0, 4.0])), TypeError, "cu_seqlens has dtype torch.float32"),
        (
            lambda u: LAYER(u[:1], cu_seqlens=[0, 4]),
            TypeError,
            "Attention: cu_seqlens is list, expected a torch",
        ),
        (
            lambda u: LAYER(u[:1], cu_seqlens=torch.zeros(1, dtype=torch.int32)),
            ValueError,
            r"Attention: cu_seqlens has shape \(1,\), expected \(S \+ 1,\)",
        ),
        (
            lambda u: LAYER(u, cu_seqlens=torch.tensor([0, 4], dtype=torch.int32)),
            ValueError,
            r"Attention: u has shape .*, expected \(1, time, d_model\), since cu_seqlens is given",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Callable[[Tensor], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call(features(2, 4))


def test_the_state_of_a_layer_has_the_sizes_that_its_docstring_says() -> None:
    config = CONFIGS["mamba2, groups, mlp"]
    assert isinstance(config, Mamba2Config)
    state = layer_of(config).initial_state(3)
    assert (state.conv.shape, state.ssm.shape) == ((3, 24 + 2 * 2 * 4, 3), (3, 6, 4, 4))
    state = layer_of(CONFIGS["attention, window, conv, mlp"]).initial_state(3, torch.float16, capacity=7)
    assert (state.k.shape, state.v.shape, state.conv.shape) == ((3, 7, 2, 8), (3, 7, 2, 8), (3, 48, 3))
    assert (state.k.dtype, state.v.dtype, state.conv.dtype) == (torch.float16,) * 3
    assert state.steps.dtype == torch.int32
