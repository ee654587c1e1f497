"""The registered operators keep PyTorch's rules: schema, shape inference, autograd registration, tracing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checks import operators
from checks.integration import PassThrough
from checks.layouts import layouts_of
from parameters import CASE, FEW, SMALL, each_case
from scaled import op as scaled
from torch import Tensor

from retrograd.core.torch.op import bind
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo

WANTED = ("all", "first")  # of the gradients


# opcheck compares the gradients of a contiguous and an expanded gradient within fp32's epsilon. Long sums in another
# order exceed it, so the large cases are checked only against the error budget.
@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, cuda=SMALL, only=FEW, half=True))
def test_opcheck_accepts_the_forward_operator(info: OpInfo, case: Case, device: str, seed: int) -> None:
    operators.check_forward(info, case, device, seed)


@pytest.mark.slow
@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, cuda=(), only=lambda info, case: not FEW(info, case)))
def test_opcheck_accepts_it_in_every_case(info: OpInfo, case: Case, device: str, seed: int) -> None:
    operators.check_forward(info, case, device, seed)


def strided(info: OpInfo, case: Case) -> list[str]:
    """The layouts of the inputs; opcheck fails on an empty view whose strides are not dense, whatever the operator."""
    empty = any(0 in tensor.shape for tensor in case.inputs.values())
    return [] if empty else [layout for layout in layouts_of(info, case) if layout not in info.gradients_only]


@pytest.mark.parametrize((*CASE, "layout"), each_case(cpu=SMALL, cuda=SMALL, each=strided, spread=True, half=True))
def test_opcheck_accepts_the_forward_operator_on_any_strides(
    info: OpInfo, case: Case, device: str, layout: str, seed: int
) -> None:
    operators.check_forward(info, case, device, seed, layout, ("test_schema", "test_faketensor"))


LAYOUTS = ("dense", "transposed", "permuted", "sliced")
BY_TURNS = [f"{layout}-{WANTED[i % 2]}" for i, layout in enumerate(LAYOUTS)]
OTHERS = [f"{layout}-{WANTED[1 - i % 2]}" for i, layout in enumerate(LAYOUTS)]
OTHER_CALLS = [
    pytest.param(*parameters.values, marks=(*parameters.marks, pytest.mark.slow))
    for parameters in each_case(*OTHERS, cpu=SMALL, cuda=SMALL, only=FEW)
]


@pytest.mark.parametrize(
    (*CASE, "how"), [*each_case(*BY_TURNS, cpu=SMALL, cuda=SMALL, only=FEW, spread=True), *OTHER_CALLS]
)
def test_opcheck_accepts_the_backward_operator(info: OpInfo, case: Case, device: str, how: str, seed: int) -> None:
    layout, which = how.split("-")
    operators.check_backward(info, case, device, seed, None if layout == "dense" else layout, which == "first")


def test_an_op_of_one_result_and_one_gradient_has_operators_too() -> None:
    """PyTorch's operators return a single tensor as itself, and several as a tuple."""
    x = torch.randn(3, 4, requires_grad=True)
    call = bind(scaled.OP)

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        (found,) = torch.autograd.grad(function(x).sum(), x)
        return found

    def direct(x: Tensor) -> Tensor:
        (y,) = call({"x": x, "scale": torch.tensor(2.0), "seed": None}, {})
        assert y is not None
        return y

    with PassThrough():
        found = direct(x)
        assert torch.equal(gradient(direct), torch.full((3, 4), 2.0))
    assert torch.equal(found, direct(x))
    compiled = torch.compile(direct, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), found)
    assert torch.equal(gradient(compiled), torch.full((3, 4), 2.0))
    assert torch.equal(torch.vmap(direct)(x[None])[0], found)
