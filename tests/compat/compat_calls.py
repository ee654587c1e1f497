"""Calls of mamba_ssm's functions, and the comparison of two implementations of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

BATCH, DIM, STEPS, STATES, RANK, WIDTH, GROUPS = 2, 6, 9, 4, 3, 4, 2

Draw = Callable[..., Tensor]

# float64 has 16 digits; after sums of up to a hundred terms at least 12 are right.
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)


def drawing(seed: int) -> Draw:
    """A function that draws normal float64 tensors of the passed sizes, with requires_grad."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    return normal


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """An argument whose values do not matter."""
    return torch.zeros(shape, dtype=dtype)


def gradients(outputs: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Gradients of a fixed weighted sum of all results, for every input that can have one."""
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(0)
    total = sum((y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum().real for y in results)
    leaves = {name: t for name, t in inputs.items() if isinstance(t, Tensor) and t.requires_grad}
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))


def assert_same_function(ours: Callable[..., Any], meant: Callable[..., Any], inputs: dict[str, Any]) -> None:
    """Assert equal values and gradients."""
    got, expected = ours(**inputs), meant(**inputs)
    close(got, expected)
    close(gradients(got, inputs), gradients(expected, inputs))


def decay(draw: Draw, is_complex: bool = False) -> Tensor:
    real = -draw(DIM, STATES).detach().exp()
    return (torch.complex(real, draw(DIM, STATES).detach()) if is_complex else real).requires_grad_()


def matrix(draw: Draw, form: str, is_complex: bool) -> Tensor:
    last = STEPS * (2 if is_complex else 1)
    if form == "steps":
        return draw(BATCH, STATES, last)
    if form == "groups":
        return draw(BATCH, GROUPS, STATES, last)
    return draw(DIM, STATES, dtype=torch.complex128 if is_complex else torch.float64)


def scan_inputs(draw: Draw, B: str = "steps", C: str = "steps", is_complex: bool = False) -> dict[str, Any]:
    return {
        "u": draw(BATCH, DIM, STEPS),
        "delta": draw(BATCH, DIM, STEPS),
        "A": decay(draw, is_complex),
        "B": matrix(draw, B, is_complex),
        "C": matrix(draw, C, is_complex),
        "D": draw(DIM),
        "z": draw(BATCH, DIM, STEPS),
        "delta_bias": draw(DIM),
        "delta_softplus": True,
    }


def inner_inputs(draw: Draw, is_complex: bool = False) -> dict[str, Any]:
    numbers = STATES * (2 if is_complex else 1)
    return {
        "xz": draw(BATCH, 2 * DIM, STEPS),
        "conv1d_weight": draw(DIM, 1, WIDTH),
        "conv1d_bias": draw(DIM),
        "x_proj_weight": draw(RANK + 2 * numbers, DIM),
        "delta_proj_weight": draw(DIM, RANK),
        "out_proj_weight": draw(5, DIM),
        "out_proj_bias": draw(5),
        "A": decay(draw, is_complex),
        "D": draw(DIM),
        "delta_bias": draw(DIM),
    }
