"""Comparisons of results: bitwise, by shape and dtype, and within the error budget. Errors name the array."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo

from .budget import judge, measure
from .draw import Arrays, upcast


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two arrays have the same shape, dtype and bits, including NaN and the sign of zero."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():  # an empty tensor may have any strides, with which its bytes cannot be viewed
        return True
    # Copied because PyTorch treats a single element as contiguous whatever its strides are.
    dense = (t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for t in (a, b))
    return torch.equal(*(tensor.view(-1).view(torch.uint8) for tensor in dense))


def assert_same_bits(result: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Assert that all expected results are bitwise equal."""
    wrong = [name for name, tensor in expected.items() if not same_bits(result[name], tensor)]
    if wrong:
        raise AssertionError("; ".join(f"{where}: {name} {difference(result[name], expected[name])}" for name in wrong))


def difference(found: Tensor, expected: Tensor) -> str:
    """How far apart two arrays are that have not the same bits, and where."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"is {tuple(found.shape)} {found.dtype}, expected {tuple(expected.shape)} {expected.dtype}"
    places = (found != expected).nonzero()
    if not len(places):
        return "differs in the signs of zeros"
    apart = float((upcast(found) - upcast(expected)).abs().max())
    first, last = (tuple(places[i].tolist()) for i in (0, -1))
    return f"differs by {apart} at {len(places)} of {found.numel()} places, from {first} to {last}"


def same_form(info: OpInfo, case: Case, result: Arrays, plain: Arrays) -> None:
    """Assert that outputs and gradients have the reference's shapes and dtypes."""
    for name, tensor in plain.items():
        found, expected = (f"{tuple(t.shape)} {t.dtype}" for t in (result[name], tensor))
        assert found == expected, f"{info.name}, {case.name}: {name} is {found}, expected {expected}"


def assert_within_budget(draws: list[tuple[Arrays, Arrays, Arrays]], where: str, slack: float = 1.0) -> None:
    """Assert that every error is at most `slack` times its budget; a draw is (result, plain, exact)."""
    for name in draws[0][0]:
        verdict = judge([measure(result[name], plain[name], exact[name]) for result, plain, exact in draws])
        budget = slack * verdict.budget
        if not verdict.error <= budget:
            raise AssertionError(f"{where}: error of {name} is {verdict.error:.3g}, budget {budget:.3g}")
