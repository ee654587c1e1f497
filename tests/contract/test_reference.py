"""The reference: its gradients by autograd agree with finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos
from retrograd.testing.draw import draw, leaves, options, outputs

SMALL = [
    pytest.param(info, case, id=f"{info.name}-{case.name}") for info in infos() for case in info.tagged("interpreter")
]

DOUBLE = {"int32": "int32", "complex64": "complex128"}


def in_float64(case: Case) -> Case:
    """The case in float64 and complex128."""
    inputs = {name: replace(t, dtype=DOUBLE.get(t.dtype, "float64")) for name, t in case.inputs.items()}
    return replace(case, inputs=inputs)


def gradcheck(function: Callable[..., Any], case: Case, seed: int) -> None:
    """Compare gradients along random directions with finite differences, at a cost independent of the size."""
    case = in_float64(case)
    inputs = leaves(draw(case, "cpu", seed))
    wanted = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}

    def called(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = inputs | dict(zip(wanted, arguments, strict=True))
        return outputs(function, tensors, options(case, torch.float64))

    assert torch.autograd.gradcheck(called, tuple(wanted.values()), fast_mode=True)


@pytest.mark.parametrize(("info", "case"), SMALL)
def test_the_reference_has_the_gradients_of_finite_differences(info: OpInfo, case: Case, seed: int) -> None:
    gradcheck(info.reference, case, seed)


@pytest.mark.parametrize(("info", "case"), SMALL)
def test_the_op_in_float64_has_the_gradients_of_finite_differences(info: OpInfo, case: Case, seed: int) -> None:
    gradcheck(info.torch, case, seed)
