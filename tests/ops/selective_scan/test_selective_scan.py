"""selective_scan: its reference against finite differences, and its portable path against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from ops.selective_scan.calls import call, packed_and_alone
from retrograd.core.torch.xp import torch_namespace
from retrograd.opinfo.cases import Case
from retrograd.ops.selective_scan import reference
from retrograd.ops.selective_scan.cases import CASES
from retrograd.testing.compare import assert_same_bits
from retrograd.testing.draw import draw, draw_gradients, options, plain_and_exact, upcast

TEST = [pytest.param(case, id=case.name) for case in CASES if "test" in case.tags]
SHORT = [p for p in TEST if p.values[0].shape["T"] < 40 and p.values[0].shape["N"] < 20]  # type: ignore[union-attr]


def in_torch(pass_: Any, arrays: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    outputs: Mapping[str, Tensor] = pass_.portable(torch_namespace(), arrays)
    return outputs


def drawn(case: Case, seed: int) -> tuple[dict[str, Tensor], list[Tensor]]:
    inputs = draw(case, "cpu", seed)
    return inputs, draw_gradients(reference.selective_scan, case, inputs, seed)


@pytest.mark.parametrize("case", SHORT)
def test_reference_has_the_derivative_of_finite_differences(case: Case, seed: int) -> None:
    inputs = {name: upcast(t) for name, t in drawn(case, seed)[0].items()}
    names = [name for name, t in inputs.items() if t.dtype != torch.int32]
    # A random direction for each result: gradcheck's fast mode takes one of the inputs too.
    leaves = [inputs[name].requires_grad_() for name in names]

    def function(*tensors: Tensor) -> Any:
        arguments = inputs | dict(zip(names, tensors, strict=True))
        x, dt, A, B, C = (arguments.pop(name) for name in ("x", "dt", "A", "B", "C"))
        return reference.selective_scan(x, dt, A, B, C, **arguments, **case.options)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("case", TEST)
def test_portable_path_in_float64_is_the_reference(case: Case, seed: int) -> None:
    inputs, gradients = drawn(case, seed)
    _, exact = plain_and_exact(reference.selective_scan, case, inputs, gradients, reference.plain)
    outputs = call(in_torch, {n: upcast(t) for n, t in inputs.items()}, options(case), [upcast(g) for g in gradients])
    for name, tensor in exact.items():
        assert torch.allclose(outputs[name], tensor, rtol=1e-9, atol=1e-9), name


def test_packed_sequences_have_the_bits_they_have_alone(seed: int) -> None:
    case = next(case for case in CASES if case.name == "packed")
    inputs, gradients = drawn(case, seed)
    for where, together, alone in packed_and_alone(in_torch, inputs, options(case), gradients):
        assert_same_bits(alone, together, f"{case.name}, {where}")
