"""`causal_conv1d_update_`: its results, the calls that its kernel takes, and what that is compiled to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks.resources import resources

from retrograd import causal_conv1d_update, causal_conv1d_update_
from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.spec import Param
from retrograd.ops.causal_conv1d.torch_step import UPDATE
from retrograd.ops.causal_conv1d.update import StepInPlace

from .steps import in_place

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def spec(width: int = 4, dtype: str = "bfloat16", x: tuple[int, ...] = (3, 1100)) -> StepInPlace:
    shapes = {"x": x, "state": (x[0], x[-1], width - 1), "weight": (x[-1], width), "bias": (x[-1],)}
    params = {name: Param(shape, dtype) for name, shape in shapes.items()}
    checked: StepInPlace = UPDATE.spec(params, {"activation": "silu"})
    return checked


@pytest.mark.parametrize(("width", "dtype"), [(4, BF16), (3, F32), (1, F32), (7, F16), (9, BF16), (4, torch.float64)])
def test_without_a_kernel_it_has_the_results_of_the_other(width: int, dtype: torch.dtype, seed: int) -> None:
    weight_dtype = dtype if dtype == torch.float64 else F32
    assert not in_place("cpu", seed, width, dtype, weight_dtype=weight_dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"activation": None}, {"channels": 1}, {"channels": 4352}])
@pytest.mark.parametrize(("width", "dtype"), [(4, BF16), (3, F32), (2, F16), (4, F32), (7, BF16), (8, F32)])
def test_steps_in_place_have_the_bits_of_the_others(
    width: int, dtype: torch.dtype, options: dict[str, Any], seed: int
) -> None:
    assert in_place("cuda", seed, width, dtype, **options)
    assert in_place("cuda", seed, width, dtype, weight_dtype=dtype, **options)


@pytest.mark.gpu
def test_elsewhere_the_state_stays_as_it_is(seed: int) -> None:
    assert not in_place("cuda", seed, 1, BF16)
    assert not in_place("cuda", seed, 9, BF16)
    assert not in_place("cuda", seed, 4, BF16, rows=0)
    x, weight = torch.randn(2, 5, device="cuda"), torch.randn(5, 4, device="cuda")
    for state in (torch.randn(2, 3, 5, device="cuda").mT, torch.randn(2, 5, 3, device="cuda", requires_grad=True)):
        before = state.detach().clone()
        found = causal_conv1d_update_(x, state, weight)
        assert torch.equal(state, before)
        assert all(map(torch.equal, found, causal_conv1d_update(x, state, weight)))


@pytest.mark.parametrize(
    ("changed", "taken"),
    [({}, True), ({"width": 2, "dtype": "float32"}, True), ({"dtype": "float16"}, True), ({"width": 1}, False),
     ({"width": 8}, True), ({"width": 9}, False), ({"dtype": "float64"}, False), ({"x": (3, 1, 8)}, False),
     ({"x": (0, 8)}, False)],
)  # fmt: skip
def test_its_kernel_takes_a_single_step_of_what_the_sequence_has_kernels_for(
    changed: dict[str, Any], taken: bool
) -> None:
    assert (UPDATE.implementation(spec(**changed), SUPPORTED["sm_90"], "fwd") is not None) is taken


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_thread_keeps_its_channel_and_spills_nothing(width: int, dtype: str, arch: str) -> None:
    program = UPDATE.forward(spec(width, dtype)).program({}, SUPPORTED[arch])
    assert program is not None
    (launch,) = program.launches
    compiled = build(launch, program.arrays, SUPPORTED[arch])
    found = resources(compiled)
    assert (found.spills, found.shared) == (0, 0)
    assert "convert_layout" not in compiled.asm["ttgir"]
    assert compiled.asm["ttgir"].count(" = #ttg.blocked<") == 1, (
        "an element may be read by one thread, written by another"
    )


def test_a_step_with_a_gradient_leaves_its_state_as_it_is(seed: int) -> None:
    x, state, weight = torch.randn(2, 5), torch.randn(2, 5, 3), torch.randn(5, 4, requires_grad=True)
    before = state.clone()
    y, _ = causal_conv1d_update_(x, state, weight)
    y.sum().backward()
    assert weight.grad is not None
    assert torch.equal(state, before)


def test_it_compiles() -> None:
    x, state, weight = torch.randn(2, 5), torch.randn(2, 5, 3), torch.randn(5, 4)
    compiled = torch.compile(causal_conv1d_update_, fullgraph=True, backend="eager")
    assert all(map(torch.equal, compiled(x, state, weight), causal_conv1d_update(x, state, weight)))


def test_several_steps_are_those_of_the_other() -> None:
    x, state, weight = torch.randn(2, 6, 5), torch.randn(2, 5, 3), torch.randn(5, 4)
    found = causal_conv1d_update_(x, state, weight, activation="silu")
    assert all(map(torch.equal, found, causal_conv1d_update(x, state, weight, activation="silu")))


def test_errors_name_the_function_and_the_argument() -> None:
    x, state, weight = torch.randn(2, 5), torch.randn(2, 5, 3), torch.randn(5, 4)
    with pytest.raises(ValueError, match=r"^causal_conv1d_update_: state has shape \(2, 5, 2\), expected"):
        causal_conv1d_update_(x, state[..., :2], weight)
    with pytest.raises(TypeError, match=r"^causal_conv1d_update_: state has dtype float32, expected bfloat16"):
        causal_conv1d_update_(x.bfloat16(), state, weight)
    with pytest.raises(ValueError, match=r"^causal_conv1d_update_: activation is 'relu', expected None or 'silu'"):
        causal_conv1d_update_(x, state, weight, activation="relu")  # type: ignore[arg-type]
