"""linear_scan beyond the contract: its reference, its portable path in both frameworks, its binaries."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from checks import contract
from checks.resources import resources

from retrograd import linear_scan
from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.jax.xp import jax_namespace
from retrograd.core.spec import Param
from retrograd.core.torch.xp import torch_namespace
from retrograd.opinfo.cases import Case, Tensor
from retrograd.ops.linear_scan import portable, reference
from retrograd.ops.linear_scan.cases import case as named
from retrograd.ops.linear_scan.info import INFO
from retrograd.ops.linear_scan.op import OP
from retrograd.ops.linear_scan.triton import plan
from retrograd.testing.draw import draw
from retrograd.testing.verify import Framework

OPTIONS = {"reverse": False, "return_final_state": False}
COMPILED = ("plain", "fp32_decay", "states", "long", "packed_long", "shared_both", "complex", "packed_complex")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", [reference.linear_scan, linear_scan])
def test_gradients_are_those_of_finite_differences(function: Any, dtype: torch.dtype, reverse: bool) -> None:
    a, b = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((1, 5, 2), (2, 5, 2)))
    state = torch.randn(2, 2, dtype=dtype, requires_grad=True)

    def call(a: Any, b: Any, state: Any) -> Any:
        return function(a, b, initial_state=state, reverse=reverse, return_final_state=True)

    assert torch.autograd.gradcheck(call, (a, b, state))


@pytest.mark.parametrize("case", INFO.tagged("strided"), ids=lambda case: case.name)
def test_the_portable_path_gives_the_same_in_both_frameworks(case: Case, seed: int) -> None:
    inputs = {k: t.float() if t.dtype == torch.bfloat16 else t for k, t in draw(case, "cpu", seed).items()}
    params = {name: Param(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in inputs.items()}
    spec = OP.spec(params, OPTIONS | dict(case.options))
    by_torch = portable.forward(torch_namespace(), spec, inputs)
    in_jax = {name: jax.numpy.asarray(t.numpy()) for name, t in inputs.items()}
    by_jax = jax.jit(lambda arrays: portable.forward(jax_namespace(), spec, arrays))(in_jax)
    for name, tensor in by_torch.items():
        np.testing.assert_allclose(np.asarray(by_jax[name]), tensor.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
def test_any_length_is_cut_into_chunks(T: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seed)
    a, b = torch.rand(2, T, 3, dtype=torch.float64), torch.randn(2, T, 3, dtype=torch.float64)
    expected = reference.linear_scan(a, b, reverse=True)
    for chunk in (1, 7, portable.CHUNK):
        monkeypatch.setattr(portable, "CHUNK", chunk)
        torch.testing.assert_close(linear_scan(a, b, reverse=True), expected)


def test_a_packed_sequence_does_not_see_the_infinity_of_its_neighbour() -> None:
    a, b = torch.full((1, 20, 2), 0.5), torch.ones(1, 20, 2)
    b[:, 5] = float("inf")
    h = linear_scan(a, b, cu_seqlens=torch.tensor([0, 10, 20], dtype=torch.int32))
    assert torch.equal(h[:, 10:], linear_scan(a[:, 10:], b[:, 10:]))


def test_a_product_that_overflows_does_not_touch_a_state_of_zero() -> None:
    b = torch.zeros(1, 200, 1)
    b[:, -1] = 1.0
    assert torch.equal(linear_scan(torch.full_like(b, 1e30), b), b)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"b": (2, 9)}, r"b has shape \(2, 9\), expected \(batch, time, channels\)"),
        ({"a": (2, 1, 4)}, r"a has shape \(2, 1, 4\), expected \(batch=2 or 1, time=9, channels=4 or 1\)"),
        ({"a": (3, 9, 4)}, r"a has shape \(3, 9, 4\)"),
        ({"initial_state": (3, 4)}, r"initial_state has shape \(3, 4\), expected \(batch=2, channels=4\)"),
        ({"cu_seqlens": (3,)}, r"b has shape \(2, 9, 4\), expected \(batch=1, time, channels\), since cu_seqlens is"),
        ({"a": "complex64"}, r"a has dtype complex64, expected float32 or bfloat16 or float16"),
        ({"b": "int32"}, r"b has dtype int32"),
        ({"a": "float64"}, r"a has dtype float64"),
        ({"initial_state": "bfloat16"}, r"initial_state has dtype bfloat16, expected float32"),
        ({"cu_seqlens": "int16"}, r"cu_seqlens has dtype int16, expected int32 or int64"),
        ({"reverse": 1}, r"reverse is int, expected a bool"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    shapes: dict[str, Any] = {"a": (2, 9, 4), "b": (2, 9, 4), "initial_state": (2, 4), "cu_seqlens": (3,)}
    dtypes = dict.fromkeys(shapes, "float32") | {"cu_seqlens": "int32"}
    for name, value in change.items():
        if isinstance(value, str):
            dtypes[name] = value
        elif isinstance(value, tuple):
            shapes[name] = value
    params = {
        name: Param(shapes[name], dtypes[name]) if name in ("a", "b") or name in change else None for name in shapes
    }
    if change.get("cu_seqlens") == "int16":
        params |= {name: Param((1, 9, 4), "float32") for name in ("a", "b")}
    options = OPTIONS | {name: value for name, value in change.items() if name in OPTIONS}
    with pytest.raises((ValueError, TypeError), match=f"linear_scan: {text}"):
        OP.spec(params, options)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("arch", SUPPORTED)
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_without_spilling(name: str, arch: str) -> None:
    for program in INFO.programs(INFO.case(name), SUPPORTED[arch]) or ():
        for launch in program.launches:
            found = resources(build(launch, program.arrays, SUPPORTED[arch]))
            assert found.spills == 0, f"{name}, {arch}: {launch.kernel.__name__} spills: {found}"


@pytest.mark.parametrize("case", INFO.tagged("bench"), ids=lambda case: case.name)
def test_tiles_do_not_depend_on_how_many_or_how_long_sequences_are(case: Case) -> None:
    D = case.inputs["b"].shape[2]
    for which in (plan.forward, plan.backward):
        tiles = set()
        for B, T in ((1, 1), (8, 4096), (64, 100_000)):
            param = Param((B, T, D), "float32")
            tiles.add(which(OP.spec({"a": param, "b": param}, OPTIONS)))
        assert len(tiles) == 1


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_errors_do_not_add_up_along_a_sequence_that_remembers_thousands_of_steps(
    framework: Framework, seed: int
) -> None:
    shape = (1, 3000, 16)
    remembers = named("remembers", shape, decay=Tensor(shape, "float32", mean=0.9997, std=0.0))
    contract.check_errors(INFO, remembers, "cpu", seed, framework)
