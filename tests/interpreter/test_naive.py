"""The kernels of examples/naive_*.py compute what the page on them says: in the interpreter, against float64."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
rms_norm, linear_scan = import_module("naive_rms_norm"), import_module("naive_linear_scan")


@pytest.mark.parametrize("name", rms_norm.STEPS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 96), (5, 128)])
def test_each_rms_norm_is_that_of_the_formula(name: str, shape: tuple[int, int], seed: int) -> None:
    x, dy, w = torch.randn(shape), torch.randn(shape), torch.randn(shape[1])
    y, rstd = rms_norm.STEPS[name].forward(x, w)
    dx, dw = rms_norm.STEPS[name].backward(dy, x, w, rstd)
    exact = [t.double().requires_grad_() for t in (x, w)]
    expected = torch.nn.functional.rms_norm(exact[0], shape[1:], exact[1], rms_norm.EPS)
    torch.testing.assert_close(y, expected.float())
    for found, gradient in zip((dx, dw), torch.autograd.grad(expected, exact, dy.double()), strict=True):
        torch.testing.assert_close(found, gradient.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", linear_scan.STEPS)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (2, 63, 33), (1, 64, 32), pytest.param((2, 130, 40), marks=pytest.mark.slow)]
)
def test_each_scan_is_the_recurrence(name: str, shape: tuple[int, int, int], seed: int) -> None:
    a, b = torch.rand(shape), torch.randn(shape)
    state, states = torch.zeros(shape[0], shape[2]).double(), []
    for t in range(shape[1]):
        state = a[:, t].double() * state + b[:, t].double()
        states.append(state)
    torch.testing.assert_close(linear_scan.STEPS[name](a, b), torch.stack(states, 1).float(), rtol=1e-5, atol=1e-5)
