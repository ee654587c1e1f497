"""`gated_delta_rule_prefill` and `gated_delta_rule_step`: generation is bitwise equal to training; the plain step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch import Tensor

import retrograd
import retrograd.jax
from retrograd.opinfo.cases import Case
from retrograd.ops.gated_delta_rule import reference
from retrograd.ops.gated_delta_rule.cases import case
from retrograd.ops.gated_delta_rule.generation import WINDOWS, GatedDeltaRuleWindow
from retrograd.testing.draw import draw, options

TIME = 135
ALONG = {*WINDOWS.kept, *WINDOWS.read}
CALLS = {
    "model": case("generation", (2, TIME, 2, 4, 8, 4), wide_dtype="float32", normalize_qk=True),
    "everything": case("generation", (2, TIME, 1, 3, 5, 7), dtype="float32", initial_state=True, scale=0.3),
    "channels": case("generation", (2, TIME, 2, 2, 8, 4), of_channels=True, initial_state=True, normalize_qk=True),
}
ON_A_GPU = {
    "model": case("generation", (2, TIME, 2, 4, 128, 128), wide_dtype="float32", normalize_qk=True),
    "everything": case("generation", (2, TIME, 2, 2, 64, 32), dtype="float16", initial_state=True, scale=0.3),
    "fp32": case("generation", (2, TIME, 2, 4, 32, 64), dtype="float32", normalize_qk=True),
    "channels": case("generation", (2, TIME, 2, 2, 128, 128), of_channels=True, normalize_qk=True),
}
each_call = pytest.mark.parametrize(
    ("device", "call"),
    [
        *(pytest.param("cpu", call, id=f"{name}-cpu") for name, call in CALLS.items()),
        *(pytest.param("cuda", call, id=f"{name}-cuda", marks=pytest.mark.gpu) for name, call in ON_A_GPU.items()),
    ],
)


def part(inputs: dict[str, Any], steps: Any) -> dict[str, Any]:
    """Some steps of the arrays that have a time axis."""
    return {name: tensor[:, steps] if name in ALONG else tensor for name, tensor in inputs.items()}


def without_state(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in inputs.items() if name != "initial_state"}


@each_call
@pytest.mark.parametrize("begun", [0, 1, 61, 128])
@pytest.mark.parametrize(
    "step", [retrograd.gated_delta_rule_step, retrograd.gated_delta_rule_step_], ids=["step", "in place"]
)
def test_a_sequence_continued_step_by_step_has_the_bits_of_the_whole(
    device: str, call: Case, begun: int, step: Any, seed: int
) -> None:
    inputs: dict[str, Any] = draw(call, device, seed)
    settings = options(call)
    expected = retrograd.gated_delta_rule(**inputs, **settings)
    o, window = retrograd.gated_delta_rule_prefill(**part(inputs, slice(begun)), **settings)
    assert torch.equal(o, expected[:, :begun])
    for t in range(begun, begun + 5):
        o, window = step(window, **without_state(part(inputs, t)), **settings)
        assert o.dtype == inputs["v"].dtype
        assert torch.equal(o, expected[:, t]), f"step {t}"


@each_call
def test_the_recurrence_has_the_results_of_the_definition_and_so_has_it_in_place(
    device: str, call: Case, seed: int
) -> None:
    inputs, settings = without_state(draw(call, device, seed)), options(call)
    state = torch.randn(2, *inputs["v"].shape[2:], inputs["q"].shape[3], device=device)
    mine, before = state.clone(), state.clone()
    where = mine.data_ptr()
    for t in range(3):
        step = {name: tensor[:, t : t + 1] for name, tensor in inputs.items()}
        expected, after = reference.gated_delta_rule(**step, **settings, initial_state=state, return_final_state=True)
        o, new = retrograd.gated_delta_rule_update(state, **part(inputs, t), **settings)
        torch.testing.assert_close(o, expected[:, 0], rtol=1e-2 if o.dtype != torch.float32 else 1e-5, atol=1e-5)
        torch.testing.assert_close(new, after)
        o, mine = retrograd.gated_delta_rule_update_(mine, **part(inputs, t), **settings)
        torch.testing.assert_close(o, expected[:, 0], rtol=1e-2 if o.dtype != torch.float32 else 1e-5, atol=1e-5)
        torch.testing.assert_close(mine, after)
        assert torch.equal(state, before)
        state, before = new, new.clone()
    assert device == "cpu" or mine.data_ptr() == where


def test_sequences_of_a_batch_may_be_at_different_steps(seed: int) -> None:
    call = CALLS["everything"]
    inputs: dict[str, Any] = draw(call, "cpu", seed)
    settings, begun = options(call), (126, 5)
    expected = retrograd.gated_delta_rule(**inputs, **settings)

    def of_row(i: int, steps: Any) -> dict[str, Any]:
        return part({name: tensor[i : i + 1] for name, tensor in inputs.items()}, steps)

    windows = [retrograd.gated_delta_rule_prefill(**of_row(i, slice(n)), **settings)[1] for i, n in enumerate(begun)]
    window = GatedDeltaRuleWindow(*(torch.cat(arrays) for arrays in zip(*windows, strict=True)))
    for after in range(4):
        at = [n + after for n in begun]
        steps: dict[str, Any] = {name: torch.stack([inputs[name][i, t] for i, t in enumerate(at)]) for name in ALONG}
        o, window = retrograd.gated_delta_rule_step(window, **steps, **settings)
        assert torch.equal(o, torch.stack([expected[i, t] for i, t in enumerate(at)]))


LENGTHS = [3, 64, 0, 67, 1, 0]


@pytest.mark.parametrize("name", CALLS)
def test_packed_sequences_have_the_rows_and_the_windows_that_each_has_alone(name: str, seed: int) -> None:
    settings = options(CALLS[name])
    inputs: dict[str, Any] = {n: x[:1] for n, x in draw(CALLS[name], "cpu", seed).items()}
    if given := "initial_state" in inputs:
        inputs["initial_state"] = torch.randn(len(LENGTHS), *inputs["initial_state"].shape[1:])
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    o, window = retrograd.gated_delta_rule_prefill(**inputs, **settings, cu_seqlens=bounds)
    for i, (start, stop) in enumerate(pairwise(bounds.tolist())):
        own = part(inputs, slice(start, stop))
        if given:
            own["initial_state"] = inputs["initial_state"][i : i + 1]
        alone, expected = retrograd.gated_delta_rule_prefill(**own, **settings)
        assert torch.equal(o[:, start:stop], alone)
        ours = GatedDeltaRuleWindow(*(array[i : i + 1] for array in window))
        assert all(map(torch.equal, since_border(ours), since_border(expected))), i


def since_border(window: GatedDeltaRuleWindow) -> GatedDeltaRuleWindow:
    """A window of one sequence without the values after its newest step, which may be any."""
    return window._replace(**{name: getattr(window, name)[:, : int(window.steps)] for name in WINDOWS.kept})


def test_in_jax_it_has_the_results_of_torch(seed: int) -> None:
    call = CALLS["everything"]
    inputs: dict[str, Any] = draw(call, "cpu", seed)
    settings = options(call)
    expected = retrograd.gated_delta_rule(**inputs, **settings)

    def in_jax(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: jnp.asarray(tensor.numpy()) for name, tensor in tensors.items()}

    o, window = retrograd.jax.gated_delta_rule_prefill(**in_jax(part(inputs, slice(127))), **settings)
    for t in range(127, 129):
        o, window = retrograd.jax.gated_delta_rule_step(window, **in_jax(without_state(part(inputs, t))), **settings)
        torch.testing.assert_close(torch.tensor(o.tolist()), expected[:, t], rtol=1e-4, atol=1e-4)


def test_a_prefill_and_a_step_compile(seed: int) -> None:
    inputs: dict[str, Any] = draw(CALLS["everything"], "cpu", seed)
    settings = options(CALLS["everything"])

    def generated(inputs: dict[str, Any]) -> tuple[Tensor, Tensor, GatedDeltaRuleWindow]:
        o, window = retrograd.gated_delta_rule_prefill(**part(inputs, slice(127)), **settings)
        return o, *retrograd.gated_delta_rule_step(window, **without_state(part(inputs, 127)), **settings)

    torch._dynamo.reset()
    *found, window = torch.compile(generated, fullgraph=True, backend="aot_eager")(inputs)
    *expected, expected_window = generated(inputs)
    assert isinstance(window, GatedDeltaRuleWindow)
    assert all(torch.equal(a, b) for a, b in zip((*found, *window), (*expected, *expected_window), strict=True))


def started() -> tuple[GatedDeltaRuleWindow, dict[str, Any]]:
    inputs: dict[str, Any] = draw(case("generation", (2, 5, 2, 6, 3, 4), dtype="float32"), "cpu", 1)
    return retrograd.gated_delta_rule_prefill(**part(inputs, slice(4)))[1], part(inputs, 4)


@pytest.mark.parametrize(
    ("name", "change", "kind", "text"),
    [
        ("state", lambda t: t[:1], ValueError, "window.state has shape (1, 6, 4, 3), expected (batch=2, heads=6, "),
        ("k", lambda t: t[:1], ValueError, "window.k has shape (1, 64, 2, 3), expected (batch=2, steps=64, key heads"),
        ("v", lambda t: t.bfloat16(), TypeError, "window.v has dtype bfloat16, expected float32"),
        ("g", lambda t: t[..., None].repeat(1, 1, 1, 3), ValueError, "window.g has shape (2, 64, 6, 3), expected (ba"),
        ("beta", lambda t: t[:, :5], ValueError, "window.beta has shape (2, 5, 6), expected (batch=2, steps=64, hea"),
        ("steps", lambda t: t.long(), TypeError, "window.steps has dtype int64, expected int32"),
        ("k", lambda t: None, TypeError, "window.k is NoneType, expected a torch.Tensor"),
    ],
)
def test_a_window_that_does_not_fit_the_step_is_refused_by_name(
    name: str, change: Any, kind: type[Exception], text: str
) -> None:
    window, row = started()
    with pytest.raises(kind) as raised:
        retrograd.gated_delta_rule_step(window._replace(**{name: change(getattr(window, name))}), **row)
    assert str(raised.value).startswith(f"gated_delta_rule_step: {text}")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q": (5, 2, 3)}, "q has shape (5, 2, 3), expected (batch, time, key heads, key channels=1..256)"),
        ({"v": (2, 5, 5, 4), "g": (2, 5, 5), "beta": (2, 5, 5)}, "v.shape[2] is 5, expected a multiple of the key"),
        ({"beta": (2, 3, 6)}, "beta has shape (2, 3, 6), expected (batch=2, time=5, heads=6)"),
        ({"initial_state": (1, 6, 4, 3)}, "initial_state has shape (1, 6, 4, 3), expected (batch=2, heads=6, "),
    ],
)
def test_a_beginning_is_refused_in_the_shapes_that_the_user_passed(change: dict[str, Any], text: str) -> None:
    shapes = {"q": (2, 5, 2, 3), "k": (2, 5, 2, 3), "v": (2, 5, 6, 4), "g": (2, 5, 6), "beta": (2, 5, 6)}
    arguments: dict[str, Any] = {name: torch.ones(shape) for name, shape in (shapes | change).items()}
    with pytest.raises(ValueError, match="gated_delta_rule_prefill") as raised:
        retrograd.gated_delta_rule_prefill(**arguments)
    assert str(raised.value).startswith(f"gated_delta_rule_prefill: {text}")


@pytest.mark.parametrize("step", [retrograd.gated_delta_rule_update, retrograd.gated_delta_rule_update_])
def test_a_step_is_refused_by_the_name_of_its_function(step: Any) -> None:
    q, v, g = torch.ones(2, 2, 3), torch.ones(2, 6, 4), torch.ones(2, 6)
    with pytest.raises(
        ValueError, match=rf"^{step.__name__}: v.shape\[1\] is 5, expected a multiple of the key heads, 2"
    ):
        step(torch.ones(2, 5, 4, 3), q, q, v[:, :5], g[:, :5], g[:, :5])
    with pytest.raises(ValueError, match=rf"^{step.__name__}: scale is inf, expected a finite number"):
        step(torch.ones(2, 6, 4, 3), q, q, v, g, g, scale=float("inf"))
    with pytest.raises(TypeError, match=rf"^{step.__name__}: state has dtype float16, expected float32"):
        step(torch.ones(2, 6, 4, 3).half(), q, q, v, g, g)


def test_a_step_with_a_gradient_leaves_its_window_as_it_is() -> None:
    window, row = started()
    before = [array.clone() for array in window]
    o, _ = retrograd.gated_delta_rule_step_(window, **row | {"k": row["k"].requires_grad_()})
    o.sum().backward()
    assert row["k"].grad is not None
    assert all(map(torch.equal, window, before))


@pytest.mark.parametrize("step", [retrograd.gated_delta_rule_step, retrograd.gated_delta_rule_step_])
def test_what_is_no_window_is_refused(step: Any) -> None:
    _, row = started()
    with pytest.raises(TypeError, match=f"{step.__name__}: window is tuple, expected an instance of GatedDeltaRuleW"):
        step((1, 2), **row)
