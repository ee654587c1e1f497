"""One case of one op, judged: what `retrograd check` prints and what the tests assert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from .budget import draws_for, judge
from .draw import Arrays, call, draw, options, plain_and_exact

Framework = Literal["torch", "jax"]


@dataclass(frozen=True, slots=True)
class Check:
    """A quantity's verdict.

    Attributes:
        op, case: names.
        quantity: `y`, `output 1`, ... for outputs, `d x`, `d weight`, ... for gradients.
        error: relative to the float64 reference, in the norm that is nearer to failing; see `budget`.
        budget: the largest error allowed.
        repeats: whether a second run gave the same bits.
    """

    op: str
    case: str
    quantity: str
    error: float
    budget: float
    repeats: bool

    @property
    def passed(self) -> bool:
        """Within budget, and repeatable."""
        return self.error <= self.budget and self.repeats


def verify(room: Room, case: Case, framework: Framework, device: str, seed: int) -> list[Check]:
    """Judge every output and every gradient of a case.

    Args:
        room: the op.
        case: one of its cases.
        framework: `torch` or `jax`; jax is imported only for the latter.
        device: `cpu` or `cuda`.
        seed: inputs and incoming gradients are drawn from it.

    Returns:
        A check for each quantity.

    Raises:
        AssertionError: an output or a gradient has another shape or dtype than the reference's.
    """
    rounds: list[tuple[Arrays, Arrays, Arrays]] = []
    repeats: dict[str, bool] = {}
    for i in range(draws_for(smallest(case))):
        draw_seed = seed * 1000 + i
        inputs = draw(case, device, draw_seed)
        plain, exact, gradients = plain_and_exact(room.reference, case, inputs, draw_seed)
        results = [run(room, case, framework, inputs, gradients) for _ in range(2)]
        same_form(room, case, results[0], plain)
        for name, tensor in results[0].items():
            repeats[name] = repeats.get(name, True) and same_bits(tensor, results[1][name])
        rounds.append((results[0], plain, exact))
    checks = []
    for name, repeat in repeats.items():
        judgement = judge(*([arrays[name] for arrays in part] for part in zip(*rounds, strict=True)))
        checks.append(Check(room.name, case.name, name, *judgement, repeat))
    return checks


def run(room: Room, case: Case, framework: Framework, inputs: Arrays, gradients: Sequence[Tensor]) -> Arrays:
    """One forward and backward of the op in a framework; the results are torch tensors either way."""
    if framework == "torch":
        return call(room.torch, inputs, options(case), gradients)
    from . import jax_call

    return jax_call.call(room.jax(), inputs, case.options, gradients)


def smallest(case: Case) -> int:
    """Elements of the smallest array of a case, empty ones aside: gradients are as small as inputs."""
    sizes = [torch.Size(tensor.shape).numel() for tensor in case.inputs.values()]
    return min((size for size in sizes if size), default=1)


def same_form(room: Room, case: Case, result: Arrays, plain: Arrays) -> None:
    """Assert that outputs and gradients have the reference's shapes and dtypes."""
    for name, tensor in plain.items():
        came, expected = (f"{tuple(t.shape)} {t.dtype}" for t in (result[name], tensor))
        assert came == expected, f"{room.name}, {case.name}: {name} is {came}, expected {expected}"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two arrays agree to the bit, NaN and the sign of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
