"""Exact models: the logits of generation have the bits of training, alone and in any batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exact_models import each_model, model, tokens
from torch import Tensor
from torch.func import functional_call

from retrograd.core.arch import SUPPORTED
from retrograd.core.spec import Param
from retrograd.nn import Linear, Mamba2, Mamba2Config, generate, score
from retrograd.nn.states import tensors as tensors_of
from retrograd.ops.ssd.torch_step import IN_PLACE

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@each_dtype
@each_model
@torch.no_grad()
def test_steps_after_a_prompt_have_the_logits_of_the_whole(name: str, dtype: torch.dtype) -> None:
    ours, text = model(name, dtype), tokens(3, 145)
    whole = ours(text)
    logits, state = ours(text[:, :120], ours.initial_state(3, capacity=150))
    assert torch.equal(logits, whole[:, :120])
    for t in range(120, 140):
        logits, state = ours.step(text[:, t], state)
        assert torch.equal(logits, whole[:, t]), t
    logits, _ = ours(text[:, 140:], state)  # several steps at once
    assert torch.equal(logits, whole[:, 140:])


@each_model
@torch.no_grad()
def test_many_steps_after_prompts_of_different_lengths_have_the_logits_of_the_whole(name: str) -> None:
    ours, text, lengths = model(name), tokens(3, 150), [3, 70, 64]
    packed = torch.cat([row[:length] for row, length in zip(text, lengths, strict=True)])[None]
    bounds = torch.tensor([0, 3, 73, 137], dtype=torch.int32)
    _, state = ours(packed, ours.initial_state(3, capacity=150), cu_seqlens=bounds)
    for time in (2, 75):
        more = torch.stack([row[length : length + time] for row, length in zip(text, lengths, strict=True)])
        logits, state = ours(more, state)
        for own, row, length in zip(logits, text, lengths, strict=True):
            assert torch.equal(own, ours(row[None, : length + time])[0, length:])
        lengths = [length + time for length in lengths]


@each_model
@torch.no_grad()
def test_a_row_has_the_logits_that_it_has_in_a_batch(name: str) -> None:
    ours, text = model(name), tokens(7, 40)
    whole = ours(text)
    assert torch.equal(ours(text[2:3]), whole[2:3])
    assert torch.equal(ours(text[2:3, :33]), whole[2:3, :33])


@each_model
@torch.no_grad()
def test_a_prefill_has_the_logits_and_the_state_of_the_forward_pass(name: str) -> None:
    ours, text = model(name), tokens(3, 130)
    expected, after = ours(text, ours.initial_state(3, capacity=140))
    logits, state = ours.prefill(text, capacity=140)
    assert torch.equal(logits, expected[:, -1])
    bounds = torch.tensor([0, 3, 70, 390], dtype=torch.int32)
    packed, states = text.view(1, -1), ours.initial_state(3, capacity=330)
    expected, packed_after = ours(packed, states, cu_seqlens=bounds)
    logits, packed_state = ours.prefill(packed, capacity=330, cu_seqlens=bounds)
    assert torch.equal(logits, expected[0, [2, 69, 389]])
    for found, wanted in ((state, after), (packed_state, packed_after)):
        for own, other in zip(tensors_of(found), tensors_of(wanted), strict=True):
            assert torch.equal(own, other)


def test_a_prefill_without_tokens_or_room_is_refused() -> None:
    ours, text = model("hybrid"), tokens(2, 4)
    with pytest.raises(ValueError, match=r"^LanguageModel: tokens has shape \(2, 0\), expected \(batch, at least one"):
        ours.prefill(text[:, :0], capacity=4)
    with pytest.raises(ValueError, match=r"^Attention: capacity is None, expected the most steps"):
        ours.prefill(text)
    with pytest.raises(ValueError, match=r"^Attention: state has a capacity of 3 steps, expected at least 4"):
        ours.prefill(text, capacity=3)
    for bounds, says in (([0, 2, 2, 4], "at least one token in each sequence"), ([0, 1, 5], "from 0 to 4")):
        with pytest.raises(ValueError, match=rf"^LanguageModel: cu_seqlens.*{says}"):
            ours.prefill(text[:1], capacity=4, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))


@each_model
@torch.no_grad()
def test_the_first_step_needs_no_prompt(name: str) -> None:
    ours, text = model(name), tokens(2, 3)
    logits, _ = ours.step(text[:, 0], ours.initial_state(2, capacity=3))
    assert torch.equal(logits, ours(text)[:, 0])


@pytest.mark.parametrize("batch", [1, 7])
@each_model
def test_what_is_drawn_has_the_log_probabilities_of_training(name: str, batch: int) -> None:
    ours, prompt = model(name), tokens(batch, 5)
    draws = generate(ours, prompt, 40, temperature=0.8, seed=1, log_probabilities=True)
    drawn, found = (torch.stack(each, 1) for each in zip(*draws, strict=True))
    text = torch.cat((prompt, drawn), 1)
    expected = score(ours, text, temperature=0.8)[:, 4:]
    assert (expected - found).abs().max() == 0
    assert (found.exp() > 0).all()


def test_scores_are_differentiable_and_those_of_the_definition() -> None:
    ours, text = model("hybrid"), tokens(2, 20)
    found = score(ours, text, temperature=0.5)
    logits = ours(text)[:, :-1, :60].double() / 0.5
    expected = torch.log_softmax(logits, -1).gather(-1, text[:, 1:, None])[..., 0]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


def test_without_it_products_are_those_of_pytorch() -> None:
    ours = model("hybrid", exact=False)
    assert not any(module.exact for module in ours.modules() if isinstance(module, Linear))
    layer, x = Linear(16, 8), torch.randn(5, 16)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_by_default_a_model_is_exact_where_that_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, text = model("mamba2", exact=None), tokens(2, 4)
    with torch.no_grad():
        expected, (_, state) = model("mamba2", exact=False)(text), ours(text, ours.initial_state(2))
        assert torch.equal(ours(text), expected)
        assert state[0].window is None
        monkeypatch.setattr("retrograd.nn.exact.is_free", lambda x: True)
        assert torch.equal(ours(text), model("mamba2")(text))
        _, state = ours(text, ours.initial_state(2))
        assert state[0].window is None  # there are no kernels for a step of 16 states
        monkeypatch.setattr(Mamba2, "has_fast_steps", True)
        _, state = ours(text, ours.initial_state(2))
        assert state[0].window is not None


@pytest.mark.parametrize("N", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("P", [32, 64, 128])
def test_layers_are_exact_by_default_where_hopper_has_kernels_for_their_steps(N: int, P: int) -> None:
    layer = Mamba2(64, Mamba2Config(d_state=N, headdim=P))
    rows = {"x": (2, layer.heads, P), "dt": (2, layer.heads), "B": (2, 1, N), "C": (2, 1, N)}
    given = {name: Param(shape, "bfloat16") for name, shape in rows.items()}
    given |= {f"window_{name}": Param((2, 64, *rows[name][1:]), "bfloat16") for name in ("x", "dt", "B")}
    given |= {"A": Param((layer.heads,), "float32"), "window_steps": Param((2,), "int32")}
    given["window_state"] = Param((2, layer.heads, P, N), "float32")
    step = IN_PLACE.spec(given, {})
    assert layer.has_fast_steps == (IN_PLACE.implementation(step, SUPPORTED["sm_90"], "fwd") is not None)


def exact_layer(inputs: int, outputs: int, **how: Any) -> Linear:
    layer = Linear(inputs, outputs, **how)
    layer.exact = True
    return layer


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_an_exact_layer_has_the_derivatives_of_its_definition(shape: tuple[int, ...], bias: bool) -> None:
    layer, x = exact_layer(4, 5, bias=bias, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    parameters = dict(layer.named_parameters())

    def call(x: Tensor, *given: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(parameters, given, strict=True)), (x,))

    given = (x.requires_grad_(), *parameters.values())
    assert torch.autograd.gradcheck(call, given, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, given)
    expected = torch.func.jvp(F.linear, (x, *given[1:]), given)
    for found, wanted in zip(torch.func.jvp(call, given, given), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_second_derivatives_of_an_exact_layer_pass_through_the_casts_of_autocast() -> None:
    layer, x = exact_layer(4, 5), torch.randn(3, 4)

    def second(call: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(leaf)
        assert y.dtype == torch.bfloat16
        (first,) = torch.autograd.grad(y.float().pow(3).sum(), leaf, create_graph=True)
        (found,) = torch.autograd.grad(first.pow(2).sum(), leaf)
        return found

    torch.testing.assert_close(second(layer), second(lambda x: F.linear(x, layer.weight, layer.bias)))


def test_a_compiled_exact_layer_has_the_bits_of_eager() -> None:
    layer, x = exact_layer(8, 5), torch.randn(2, 3, 8)
    results = []
    for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        y = call(leaf)
        y.square().sum().backward()
        results.append((y, leaf.grad, layer.weight.grad, layer.bias.grad))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_states_of_exact_and_other_layers_are_told_apart() -> None:
    exact, other, text = model("mamba2"), model("mamba2", exact=False), tokens(2, 4)
    _, state = exact(text, exact.initial_state(2))
    with pytest.raises(ValueError, match=r"^Mamba2: state.window is 'a window', expected None, since the layer is not"):
        other.step(text[:, 0], state)
    bounds = torch.tensor([0, 2, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^Mamba2: cu_seqlens is 'boundaries', expected None, since the state has a"):
        exact(text[:1], state, cu_seqlens=bounds)


def test_the_example_of_policy_gradient_is_on_policy(capsys: pytest.CaptureFixture[str]) -> None:
    source = (Path(__file__).parents[2] / "examples" / "policy_gradient.py").read_text()
    assert "in range(10)" in source
    exec(compile(source.replace("in range(10)", "in range(2)"), "policy_gradient.py", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("ratios from 1.000000000 to 1.000000000") for line in lines)
