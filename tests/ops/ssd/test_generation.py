"""`ssd_prefill` and `ssd_step`: generation is bitwise equal to training; refused calls."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch import Tensor

import retrograd
import retrograd.jax
from retrograd.opinfo.cases import Case
from retrograd.ops.ssd.cases import MAMBA, case
from retrograd.ops.ssd.generation import WINDOWS, SsdWindow
from retrograd.testing.draw import draw, options

TIME = 140
ALONG = {*WINDOWS.kept, *WINDOWS.read}
CALLS = {
    "mamba": case("generation", (2, TIME, 6, 16, 1, 8), dtype="bfloat16"),
    "everything": case(
        "generation", (2, TIME, 6, 5, 3, 7), dtype="float32", given=MAMBA | {"z"}, wide_D=True, initial_state=True
    ),
}
ON_A_GPU = {
    "mamba": case("generation", (2, TIME, 6, 64, 1, 128), dtype="bfloat16"),
    "everything": case("generation", (2, TIME, 6, 64, 3, 64), given=MAMBA | {"z"}, initial_state=True),
    "groups": case("generation", (3, TIME, 6, 128, 3, 64), dtype="float16", wide_D=True, initial_state=True),
    "many states": case("generation", (2, TIME, 20, 64, 1, 256), given=frozenset()),
    "dt in fp32": case("generation", (2, TIME, 40, 64, 1, 128), dt_dtype="float32"),
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
@pytest.mark.parametrize("begun", [0, 1, 57, 64, 121, 128, 129])
@pytest.mark.parametrize("step", [retrograd.ssd_step, retrograd.ssd_step_], ids=["step", "in place"])
def test_a_sequence_continued_step_by_step_has_the_bits_of_the_whole(
    device: str, call: Case, begun: int, step: Any, seed: int
) -> None:
    inputs: dict[str, Any] = draw(call, device, seed)
    settings = options(call)
    expected = retrograd.ssd(**inputs, **settings)
    y, window = retrograd.ssd_prefill(**part(inputs, slice(begun)), **settings)
    assert torch.equal(y, expected[:, :begun])
    for t in range(begun, min(begun + 11, TIME)):
        y, window = step(window, **without_state(part(inputs, t)), **settings)
        assert y.dtype == inputs["x"].dtype
        assert torch.equal(y, expected[:, t]), f"step {t}"


@each_call
def test_the_recurrence_in_place_has_the_results_of_the_other(device: str, call: Case, seed: int) -> None:
    inputs, settings = without_state(draw(call, device, seed)), options(call)
    batch, _, heads, P = inputs["x"].shape
    state = torch.randn(batch, heads, P, inputs["B"].shape[3], device=device)
    mine = state.clone()
    where = mine.data_ptr()
    for t in range(3):
        expected, state = retrograd.ssd_update(state, **part(inputs, t), **settings)
        y, mine = retrograd.ssd_update_(mine, **part(inputs, t), **settings)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(mine, state)
    assert device == "cpu" or mine.data_ptr() == where


def test_sequences_of_a_batch_may_be_at_different_steps(seed: int) -> None:
    call = CALLS["everything"]
    inputs: dict[str, Any] = draw(call, "cpu", seed)
    settings = options(call)
    expected = retrograd.ssd(**inputs, **settings)
    begun = (126, 5)

    def row(array: Tensor, i: int) -> Tensor:
        return array[i : i + 1]

    def of_row(i: int, steps: Any) -> dict[str, Any]:
        batched = {*ALONG, "initial_state"}
        return part({name: row(t, i) if name in batched else t for name, t in inputs.items()}, steps)

    windows = [retrograd.ssd_prefill(**of_row(i, slice(n)), **settings)[1] for i, n in enumerate(begun)]
    window = SsdWindow(*(torch.cat(arrays) for arrays in zip(*windows, strict=True)))
    for after in range(4):
        at = [n + after for n in begun]
        steps: dict[str, Any] = {name: torch.stack([inputs[name][i, t] for i, t in enumerate(at)]) for name in ALONG}
        y, window = retrograd.ssd_step(window, **(without_state(inputs) | steps), **settings)
        assert torch.equal(y, torch.stack([expected[i, t] for i, t in enumerate(at)]))


LENGTHS = [3, 64, 0, 300, 127, 129, 0]


@each_call
def test_packed_sequences_have_the_rows_and_the_windows_that_each_has_alone(device: str, call: Case, seed: int) -> None:
    settings = options(call)
    shapes = {n: (1, sum(LENGTHS) + 5, *tensor.shape[2:]) for n, tensor in call.inputs.items() if n in ALONG}
    if given := "initial_state" in call.inputs:
        shapes["initial_state"] = (len(LENGTHS), *call.inputs["initial_state"].shape[1:])
    sized = {n: replace(tensor, shape=shapes.get(n, tensor.shape)) for n, tensor in call.inputs.items()}
    inputs: dict[str, Any] = draw(replace(call, inputs=sized), device, seed)
    bounds = torch.tensor([2, *LENGTHS], device=device).cumsum(0).int()
    y, window = retrograd.ssd_prefill(**inputs, **settings, cu_seqlens=bounds)
    assert not y[:, :2].any()
    assert not y[:, -3:].any()
    for i, (start, stop) in enumerate(pairwise(bounds.tolist())):
        own = part(inputs, slice(start, stop))
        if given:
            own["initial_state"] = inputs["initial_state"][i : i + 1]
        alone, expected = retrograd.ssd_prefill(**own, **settings)
        assert torch.equal(y[:, start:stop], alone)
        ours = SsdWindow(*(array[i : i + 1] for array in window))
        assert all(map(torch.equal, since_border(ours), since_border(expected))), i


def since_border(window: SsdWindow) -> SsdWindow:
    """A window of one sequence without the values after its newest step, which may be any."""
    steps = int(window.steps)
    return window._replace(x=window.x[:, :steps], dt=window.dt[:, :steps], B=window.B[:, :steps])


def test_boundaries_may_be_a_batch_of_vmap(seed: int) -> None:
    call = CALLS["mamba"]
    one = {n: replace(t, shape=(1, *t.shape[1:])) if n in ALONG else t for n, t in call.inputs.items()}
    inputs: dict[str, Any] = draw(replace(call, inputs=one), "cpu", seed)
    bounds = torch.tensor([[0, 64, TIME], [3, 70, 128]], dtype=torch.int32)

    def prefill(cu_seqlens: Tensor) -> Any:
        return retrograd.ssd_prefill(**inputs, **options(call), cu_seqlens=cu_seqlens)

    y, window = torch.func.vmap(prefill)(bounds)
    for i, own in enumerate(bounds):
        expected, alone = prefill(own)
        torch.testing.assert_close((y[i], *(part[i] for part in window)), (expected, *alone))


def test_in_jax_it_has_the_results_of_torch(seed: int) -> None:
    call = CALLS["everything"]
    inputs: dict[str, Any] = draw(call, "cpu", seed)
    settings = options(call)
    expected = retrograd.ssd(**inputs, **settings)

    def in_jax(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: jnp.asarray(tensor.numpy()) for name, tensor in tensors.items()}

    y, window = retrograd.jax.ssd_prefill(**in_jax(part(inputs, slice(126))), **settings)
    for t in range(126, 130):
        y, window = retrograd.jax.ssd_step(window, **in_jax(without_state(part(inputs, t))), **settings)
        torch.testing.assert_close(torch.tensor(y.tolist()), expected[:, t], rtol=1e-4, atol=1e-4)


def test_a_prefill_and_a_step_compile(seed: int) -> None:
    inputs: dict[str, Any] = draw(CALLS["everything"], "cpu", seed)
    settings = options(CALLS["everything"])

    def generated(inputs: dict[str, Any]) -> tuple[Tensor, Tensor, SsdWindow]:
        y, window = retrograd.ssd_prefill(**part(inputs, slice(127)), **settings)
        return y, *retrograd.ssd_step(window, **without_state(part(inputs, 127)), **settings)

    torch._dynamo.reset()
    *found, window = torch.compile(generated, fullgraph=True, backend="aot_eager")(inputs)
    *expected, expected_window = generated(inputs)
    assert isinstance(window, SsdWindow)
    assert all(torch.equal(a, b) for a, b in zip((*found, *window), (*expected, *expected_window), strict=True))


def started() -> tuple[SsdWindow, dict[str, Any]]:
    inputs: dict[str, Any] = draw(case("generation", (2, 5, 6, 4, 1, 3), dtype="float32"), "cpu", 1)
    return retrograd.ssd_prefill(**part(inputs, slice(4)))[1], part(inputs, 4)


@pytest.mark.parametrize(
    ("name", "change", "kind", "text"),
    [
        ("state", lambda t: t[:1], ValueError, "window.state has shape (1, 6, 4, 3), expected (batch=2, heads=6, "),
        (
            "x",
            lambda t: t[:1],
            ValueError,
            "window.x has shape (1, 64, 6, 4), expected (batch=2, steps=64, heads=6, ",
        ),
        ("x", lambda t: t.bfloat16(), TypeError, "window.x has dtype bfloat16, expected float32"),
        ("dt", lambda t: t[:, :5], ValueError, "window.dt has shape (2, 5, 6), expected (batch=2, steps=64, heads=6)"),
        ("B", lambda t: t.double(), TypeError, "window.B has dtype float64, expected float32"),
        ("steps", lambda t: t.long(), TypeError, "window.steps has dtype int64, expected int32"),
        ("steps", lambda t: t.to("meta"), ValueError, "device of window.steps is 'meta', expected cpu"),
        ("x", lambda t: None, TypeError, "window.x is NoneType, expected a torch.Tensor"),
    ],
)
def test_a_window_that_does_not_fit_the_step_is_refused_by_name(
    name: str, change: Any, kind: type[Exception], text: str
) -> None:
    window, row = started()
    with pytest.raises(kind) as raised:
        retrograd.ssd_step(window._replace(**{name: change(getattr(window, name))}), **row)
    assert str(raised.value).startswith(f"ssd_step: {text}")


def test_what_is_no_window_is_refused() -> None:
    _, row = started()
    with pytest.raises(TypeError, match="ssd_step: window is tuple, expected an instance of SsdWindow"):
        retrograd.ssd_step((1, 2), **row)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": (5, 6, 4)}, "x has shape (5, 6, 4), expected (batch, time, heads, channels=1..256)"),
        ({"B": (2, 5, 3)}, "B has shape (2, 5, 3), expected (batch=2, time=5, groups, state=1..256)"),
        ({"dt": (2, 3, 6)}, "dt has shape (2, 3, 6), expected (batch=2, time=5, heads=6)"),
        ({"z": (4,)}, "z has shape (4,), expected the shape of x, (2, 5, 6, 4)"),
        ({"initial_state": (1, 6, 4, 3)}, "initial_state has shape (1, 6, 4, 3), expected (batch=2, heads=6, "),
    ],
)
def test_a_beginning_is_refused_in_the_shapes_that_the_user_passed(change: dict[str, Any], text: str) -> None:
    shapes = {"x": (2, 5, 6, 4), "dt": (2, 5, 6), "A": (6,), "B": (2, 5, 1, 3), "C": (2, 5, 1, 3)}
    arguments: dict[str, Any] = {name: torch.ones(shape) for name, shape in (shapes | change).items()}
    with pytest.raises(ValueError, match="ssd_prefill") as raised:
        retrograd.ssd_prefill(**arguments)
    assert str(raised.value).startswith(f"ssd_prefill: {text}")
