"""The error budget: twice the error of the plain computation, plus the rounding error of the output dtype.

Let r be the float64 reference, q the result under test, p the plain computation in the same dtypes. The best possible
element of q is r rounded to nearest, whose error is at most

    R_i = max(u |r_i|, t / 2)

with u the unit roundoff of q's dtype (half the distance from 1 to the next number) and t its smallest subnormal number.
For a complex number, |.| is the modulus, and u and t are those of its real and imaginary parts.
The error is measured in two norms, and the inequality must hold in both:

    ||q - r|| / ||r|| <= (2 ||p - r|| + ||R||) / ||r||

The Euclidean norm detects an error spread over an array; the maximum norm detects one wrong element among millions.
p also performs the unavoidable intermediate roundings (for example of s = x + residual to its own dtype), so its error
includes them.

In one draw of a small array, p's error may happen to be almost 0, which would leave no budget. So small cases are drawn
many times, and the two sides are compared by their geometric means, in which every draw has the same weight: an
arithmetic mean would be dominated by the worst-conditioned draw. One draw is enough for a call with many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, prod
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case

from .draw import upcast

# A case is drawn until its draws have ROWS rows and ELEMENTS elements of its smallest array in all; at most MOST_DRAWS.
ROWS = 16
ELEMENTS = 512
MOST_DRAWS = 128
# After CLEAR_DRAWS draws a case whose errors are at most CLEAR times their budgets needs no more. The logarithm of one
# element's error has a standard deviation of 1.1, its mean over 32 draws one of 0.2: a kernel whose error is its budget
# shows half of it, a logarithm smaller by 0.7, once in thousands of cases.
CLEAR_DRAWS, CLEAR = 32, 0.5
# Errors such as a wrong stride far exceed rounding errors: a few draws with SLACK times the budget detect them.
FEW_DRAWS = 3
SLACK = 8.0
LUCKY = 1e-3  # smaller errors, including 0, count as this share of their budget, so that the geometric mean is not 0


class Judgement(NamedTuple):
    """An error and its budget, both relative to the reference."""

    error: float
    budget: float

    @property
    def used(self) -> float:
        """The error as a share of the budget."""
        return self.error / self.budget if self.budget else (inf if self.error else 0.0)


Measured = tuple[Judgement, Judgement]  # in the Euclidean and in the maximum norm


def draws_for(case: Case) -> int:
    """How many draws of a case are judged together."""
    drawn = [tensor for tensor in case.inputs.values() if tensor.values is None]
    sizes = [size for size in (prod(tensor.shape) for tensor in drawn) if size]
    if not sizes:
        return 1
    rows = prod(drawn[0].shape[:-1])
    return max(1, min(MOST_DRAWS, max(-(-ROWS // max(rows, 1)), -(-ELEMENTS // min(sizes)))))


def rounding(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """R, the largest error from rounding each element to nearest."""
    info = torch.finfo(dtype)
    return (exact.abs() * (info.eps / 2)).clamp(min=info.smallest_normal * info.eps / 2)


def measure(result: Tensor, plain: Tensor, exact: Tensor) -> Measured | None:
    """The error of one draw; infinite if the result contains NaN or an infinity that the exact result has not.

    None if the plain computation overflows and the result does not: such a draw has no budget.
    """
    if exact.numel() == 0:
        return Judgement(0.0, 0.0), Judgement(0.0, 0.0)
    met = exact.isinf() & (upcast(result) == exact) & (upcast(plain) == exact)
    result, plain, exact = (torch.where(met, 0, tensor) for tensor in (result, plain, exact))
    if not bool(torch.isfinite(plain).all()) and bool(torch.isfinite(result).all()):
        return None
    parts = (exact, upcast(result) - exact, upcast(plain) - exact, rounding(exact, result.dtype))
    found = []
    for order in (2.0, inf):
        scale, error, plain_error, rounded = (float(torch.linalg.vector_norm(part, order)) for part in parts)
        scale = scale or 1.0
        error = error / scale if error < inf else inf  # false for NaN too
        found.append(Judgement(error, (2 * plain_error + rounded) / scale))
    return found[0], found[1]


def judge(draws: Sequence[Measured | None]) -> Judgement:
    """Error and budget over several draws, in the norm with the larger share of the budget used.

    Raises:
        ValueError: the plain computation overflows in every draw: draw the case from a smaller range.
    """
    budgeted = [draw for draw in draws if draw is not None]
    if not budgeted:
        raise ValueError("the plain computation overflows in every draw, so there is no budget")
    norms = [
        Judgement(
            geometric_mean([max(j.error, LUCKY * j.budget) for j in judgements]),
            geometric_mean([j.budget for j in judgements]),
        )
        for judgements in zip(*budgeted, strict=True)
    ]
    return max(norms, key=lambda judgement: judgement.used)


def is_clear(draws: Sequence[Measured | None]) -> bool:
    """Whether so many draws show errors so far below their budgets that no more are needed."""
    budgeted = [draw for draw in draws if draw is not None]
    return len(budgeted) >= CLEAR_DRAWS and judge(budgeted).used <= CLEAR


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of non-negative numbers; 0 if one of them is 0."""
    return exp(fmean(log(value) for value in values)) if all(values) else 0.0
