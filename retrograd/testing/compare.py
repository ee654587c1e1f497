"""Results compared: to the bit, in form, and within the error budget. Each function asserts and names what differs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from .budget import judge, measure
from .draw import Arrays, upcast


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two arrays agree to the bit, NaN and the sign of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():  # an empty tensor may have any strides, with which its bytes cannot be viewed
        return True
    # A copy, since a single element counts as contiguous whatever its strides are.
    dense = (t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for t in (a, b))
    return torch.equal(*(tensor.view(-1).view(torch.uint8) for tensor in dense))


def assert_same_bits(result: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Assert that all results agree to the bit."""
    for name, tensor in expected.items():
        came = result[name]
        if not same_bits(came, tensor):
            form = f"{tuple(came.shape)} {came.dtype} and {tuple(tensor.shape)} {tensor.dtype}"
            apart = float((upcast(came) - upcast(tensor)).abs().max()) if came.shape == tensor.shape else "shapes"
            raise AssertionError(f"{where}: {name} differs by {apart}; {form}")


def same_form(room: Room, case: Case, result: Arrays, plain: Arrays) -> None:
    """Assert that outputs and gradients have the reference's shapes and dtypes."""
    for name, tensor in plain.items():
        came, expected = (f"{tuple(t.shape)} {t.dtype}" for t in (result[name], tensor))
        assert came == expected, f"{room.name}, {case.name}: {name} is {came}, expected {expected}"


def assert_within_budget(draws: list[tuple[Arrays, Arrays, Arrays]], where: str, slack: float = 1.0) -> None:
    """Assert that every quantity keeps so many times its budget; a draw is (result, plain, exact)."""
    for name in draws[0][0]:
        verdict = judge([measure(result[name], plain[name], exact[name]) for result, plain, exact in draws])
        budget = slack * verdict.budget
        if not verdict.error <= budget:
            raise AssertionError(f"{where}: error of {name} is {verdict.error:.3g}, budget {budget:.3g}")
