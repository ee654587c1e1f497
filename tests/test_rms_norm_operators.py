"""The registered operators keep PyTorch's rules: schema, shape inference, autograd registration, tracing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parameters import CASE, CPU, SMALL, each_case

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.testing.draw import draw, options
from retrograd.testing.layouts import GRADIENTS_ONLY, LAYOUTS


def operator_arguments(room: Room, case: Case, device: str, seed: int, layout: str | None = None) -> tuple[Any, ...]:
    """What the registered operator takes, positionally."""
    inputs = draw(case, device, seed)
    if layout:
        inputs = {name: LAYOUTS[layout](tensor) for name, tensor in inputs.items()}
    given = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    statics = {"eps": 1e-6, "weight_offset": 0.0, "group_size": None, "norm_before_gate": False, "out_dtype": None}
    chosen = options(case)
    return (*map(given.get, room.arguments), *(chosen.get(name, value) for name, value in statics.items()))


# opcheck compares the gradients of a contiguous and an expanded dy within fp32's epsilon, which sums over tens of
# thousands of rows in another order do not keep: the large cases are left to the budget.
@pytest.mark.parametrize(CASE, each_case(cuda=CPU))
def test_opcheck_accepts_the_forward_operator(room: Room, case: Case, device: str, seed: int) -> None:
    torch.library.opcheck(torch.ops.retrograd.rms_norm.default, operator_arguments(room, case, device, seed))


# opcheck fails on an empty view whose strides are not dense ("negative dimension"), whatever the operator.
STRIDED = [
    parameters
    for parameters in each_case(*sorted(set(LAYOUTS) - GRADIENTS_ONLY), cpu=SMALL)
    if 0 not in parameters.values[1].inputs["x"].shape
]


@pytest.mark.parametrize((*CASE, "layout"), STRIDED)
def test_opcheck_accepts_the_forward_operator_on_any_strides(
    room: Room, case: Case, device: str, layout: str, seed: int
) -> None:
    arguments = operator_arguments(room, case, device, seed, layout)
    torch.library.opcheck(
        torch.ops.retrograd.rms_norm.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("parameters", [True, False], ids=["all", "inputs-alone"])
@pytest.mark.parametrize("layout", [None, "transposed", "permuted", "sliced"])
@pytest.mark.parametrize(CASE, each_case(cpu=SMALL))
def test_opcheck_accepts_the_backward_operator(
    room: Room, case: Case, device: str, layout: str | None, parameters: bool, seed: int
) -> None:
    with torch.no_grad():
        x, weight, bias, residual, gate, *statics = operator_arguments(room, case, device, seed, layout)
        y, s, rstd = torch.ops.retrograd.rms_norm(x, weight, bias, residual, gate, *statics)
    dsum = None if residual is None else torch.randn_like(s)
    residual_dtype = None if residual is None else residual.dtype
    given = (x if residual is None else s, gate, weight, bias)
    saved = tuple(None if tensor is None else tensor.detach() for tensor in given)
    torch.library.opcheck(
        torch.ops.retrograd.rms_norm_backward.default,
        (torch.randn_like(y), dsum, *saved, rstd, x.dtype, residual_dtype, *statics, parameters),
    )
