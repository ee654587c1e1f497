"""selective_scan's kernels in Triton's interpreter, without the binding of a framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from checks.interpreter import as_float16
from torch import Tensor

from ops.selective_scan.calls import Arrays, call, packed_and_alone
from retrograd.core.arch import SUPPORTED
from retrograd.core.program import Layout
from retrograd.core.torch.launch import interpret
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import spec_of
from retrograd.ops.selective_scan import reference
from retrograd.ops.selective_scan.cases import CASES
from retrograd.ops.selective_scan.op import OP
from retrograd.ops.selective_scan.triton import plan
from retrograd.testing.budget import draws_for
from retrograd.testing.compare import assert_same_bits, assert_within_budget
from retrograd.testing.draw import draw, draw_gradients, options, plain_and_exact

pytestmark = pytest.mark.slow  # test_kernels.py runs the contract every time

REAL = [case for case in CASES if not case.inputs["A"].dtype.startswith("complex")]  # others have no kernels
SMALL = [pytest.param(as_float16(case), id=case.name) for case in REAL if "interpreter" in case.tags]
STRIDED = [pytest.param(as_float16(case), id=case.name) for case in REAL if "strided" in case.tags]


def in_interpreter(pass_: Any, arrays: Mapping[str, Tensor]) -> Arrays:
    layouts = {name: Layout(tuple(t.stride()), t.data_ptr() % 16 == 0) for name, t in arrays.items()}
    program = pass_.program(layouts, SUPPORTED["sm_80"])
    assert [array.name for array in program.inputs] == list(pass_.inputs)
    assert program.outputs == pass_.outputs
    outputs = interpret(program, [arrays[array.name] for array in program.inputs])
    return {array.name: tensor for array, tensor in zip(program.outputs, outputs, strict=True)}


def drawn(case: Case, seed: int) -> tuple[Arrays, list[Tensor]]:
    inputs = draw(case, "cpu", seed)
    return inputs, draw_gradients(reference.selective_scan, case, inputs, seed)


def check(case: Case, seed: int, layout: Any = lambda name, tensor: tensor) -> None:
    draws = []
    for i in range(min(4, draws_for(case))):
        inputs, gradients = drawn(case, seed * 1000 + i)
        plain, exact = plain_and_exact(reference.selective_scan, case, inputs, gradients, reference.plain)
        tensors = {name: layout(name, tensor) for name, tensor in inputs.items()}
        incoming = [layout(f"d {i}", gradient) for i, gradient in enumerate(gradients)]
        draws.append((call(in_interpreter, tensors, options(case), incoming), plain, exact))
    assert_within_budget(draws, case.name)


def test_every_small_case_has_kernels() -> None:
    specs = [spec_of(OP, p.values[0]) for p in SMALL]  # type: ignore[arg-type]
    for which in ("fwd", "bwd"):
        assert all(OP.implementation(spec, SUPPORTED["sm_80"], which) for spec in specs)


@pytest.mark.parametrize("case", SMALL)
def test_kernels_keep_the_error_budget(case: Case, seed: int) -> None:
    check(case, seed)


def transposed(name: str, tensor: Tensor) -> Tensor:
    """The last two axes transposed in memory: (B, D, T) viewed as (B, T, D)."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor


def sliced(name: str, tensor: Tensor) -> Tensor:
    """A slice of a larger array of NaN, with gaps along every axis."""
    if tensor.dtype == torch.int32:
        return tensor
    whole = torch.full([2 * size + 3 for size in tensor.shape], torch.nan, dtype=tensor.dtype)
    part = whole[tuple(slice(1, 2 * size + 1, 2) for size in tensor.shape)]
    return part.copy_(tensor)


@pytest.mark.parametrize("layout", [transposed, sliced])
@pytest.mark.parametrize("case", STRIDED)
def test_kernels_take_arrays_where_they_lie(case: Case, layout: Any, seed: int) -> None:
    check(case, seed, layout)


def test_packed_sequences_have_the_bits_they_have_alone(seed: int) -> None:
    case = as_float16(next(case for case in CASES if case.name == "packed"))
    inputs, gradients = drawn(case, seed)
    for where, together, alone in packed_and_alone(in_interpreter, inputs, options(case), gradients):
        assert_same_bits(alone, together, f"{case.name}, {where}")


def test_rows_have_the_bits_they_have_alone(seed: int) -> None:
    case = as_float16(next(case for case in CASES if case.name == "states"))
    inputs, gradients = drawn(case, seed)
    together = call(in_interpreter, inputs, options(case), gradients)
    batched = ("x", "dt", "B", "C", "z", "initial_state")
    second = {name: t[1:] if name in batched else t for name, t in inputs.items()}
    alone = call(in_interpreter, second, options(case), [g[1:] for g in gradients])
    names = ["y", "output 1", *(f"d {name}" for name in batched)]
    assert_same_bits({n: alone[n] for n in names}, {n: together[n][1:] for n in names}, case.name)


@pytest.mark.parametrize("bounds", [(5, 9, 30), (0, 9, 20), (3, 3, 3), (-4, 9, 99), (0, 20, 10, 34)])
def test_steps_outside_of_any_sequence_get_zeros(bounds: tuple[int, ...], seed: int) -> None:
    case = as_float16(next(case for case in CASES if case.name == "packed_plain"))
    inputs, gradients = drawn(case, seed)
    inputs["cu_seqlens"] = torch.tensor(bounds, dtype=torch.int32)
    outputs = call(in_interpreter, inputs, options(case), gradients)
    for name, tensor in outputs.items():
        assert torch.isfinite(tensor).all(), name
        if name in ("y", "d x", "d dt", "d B", "d C"):
            assert not tensor[:, : max(bounds[0], 0)].any(), name
            assert not tensor[:, max(bounds) :].any(), name


def test_small_tiles_give_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Channels of a group in several blocks, the last of them not full."""
    monkeypatch.setattr(plan, "FORWARD_CHANNELS", 2)
    monkeypatch.setattr(plan, "BACKWARD_CHANNELS", 1)
    case = as_float16(next(case for case in CASES if case.name == "odd_channels"))
    inputs = {
        name: replace(t, shape=tuple(5 if size == 37 else size for size in t.shape)) for name, t in case.inputs.items()
    }
    check(replace(case, inputs=inputs), seed)
