"""Verifies one case of one op: for `retrograd check` to print and for the tests to assert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo

from .budget import MOST_DRAWS, SLACK, Measured, draws_for, is_clear, judge, measure
from .compare import same_bits, same_form
from .draw import Arrays, call, draw, draw_gradients, options, plain_and_exact
from .poison import poisoned

Framework = Literal["torch", "jax"]


@dataclass(frozen=True, slots=True)
class Check:
    """The error of one output or gradient of a case.

    Attributes:
        op, case: their names.
        quantity: `y`, `output 1`, ... for outputs, `d x`, `d weight`, ... for gradients.
        error: relative to the float64 reference, in the norm with the larger share of the budget used; see `budget`.
        budget: the largest error allowed.
        repeats: whether a second run had the same bits.
    """

    op: str
    case: str
    quantity: str
    error: float
    budget: float
    repeats: bool

    @property
    def passed(self) -> bool:
        """Whether the error is within budget and the result repeatable."""
        return self.error <= self.budget and self.repeats


def verify(
    info: OpInfo, case: Case, framework: Framework, device: str, seed: int, most_draws: int = MOST_DRAWS
) -> list[Check]:
    """Verify every output and every gradient of a case.

    Args:
        info: the op.
        case: one of its cases.
        framework: `torch` or `jax`; jax is imported only for the latter.
        device: `cpu` or `cuda`.
        seed: inputs and incoming gradients are drawn from it.
        most_draws: the largest number of draws; if the case needs more, the budget is multiplied by SLACK.

    Returns:
        A check for each output and gradient.

    Raises:
        AssertionError: the shape or dtype of an output or gradient differs from the reference's.
    """
    measured: dict[str, list[Measured | None]] = {}
    repeats: dict[str, bool] = {}
    draws_wanted = max(draws_for(case), info.draws)
    slack = 1.0 if draws_wanted <= most_draws else SLACK
    for i in range(min(draws_wanted, most_draws)):
        inputs = draw(case, device, seed * 1000 + i)
        gradients = draw_gradients(info.reference, case, inputs, seed * 1000 + i)
        plain, exact = plain_and_exact(info.reference, case, inputs, gradients, info.plain)
        result = run(info, case, framework, inputs, gradients)
        same_form(info, case, result, plain)
        for name, tensor in result.items():
            measured.setdefault(name, []).append(measure(tensor, plain[name], exact[name]))
        if i == 0:
            again = run(info, case, framework, inputs, gradients)
            repeats = {name: same_bits(tensor, again[name]) for name, tensor in result.items()}
        # Not after every draw, since judging all of them takes time, too.
        if slack == 1.0 and i % 8 == 7 and all(map(is_clear, measured.values())):
            break
    return [
        Check(info.name, case.name, name, verdict.error, slack * verdict.budget, repeats[name])
        for name, verdict in ((name, judge(draws)) for name, draws in measured.items())
    ]


def run(info: OpInfo, case: Case, framework: Framework, inputs: Arrays, gradients: Sequence[Tensor]) -> Arrays:
    """One forward and backward of the op in a framework; the results are PyTorch tensors for both frameworks."""
    if framework == "torch":
        with poisoned():
            return call(info.torch, inputs, options(case), gradients)
    from . import jax_call

    return jax_call.call(info.jax(), inputs, case.options, gradients)
