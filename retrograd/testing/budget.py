"""How large an error may be: twice that of the plain computation, plus the rounding of the output dtype.

Let r be the float64 reference, q the result under test, p the plain computation in the same dtypes. An element of q can
at best be r rounded to nearest, which costs at most

    R_i = max(u |r_i|, t / 2)

with u the unit roundoff of q's dtype (half the distance from 1 to the next number) and t its smallest subnormal number.
Of a complex number, |.| is the modulus, and u and t are those of its parts.
Errors are measured in two norms, and both must hold:

    ||q - r|| / ||r|| <= (2 ||p - r|| + ||R||) / ||r||

The Euclidean norm sees an error spread over an array; the maximum norm sees one wrong element among millions, which
the other would drown. Roundings that a computation cannot avoid on its way (that of s = x + residual to its own
dtype, say) are made by p as well, so they are in its error.

In one draw of a small array p's error is a matter of luck, and a lucky p would leave no budget. So small cases are
drawn many times, and the two sides are compared by their geometric means, in which every draw weighs the same: by
arithmetic means, the one draw that happens to be worst conditioned would decide. One draw is enough where a call has
many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, prod
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from retrograd.core.cases import Case

from .draw import upcast

# Draws are added until a call has had this many rows, and its smallest array this many elements, or to MOST_DRAWS.
ROWS = 16
ELEMENTS = 512
MOST_DRAWS = 128
# What tells wrong elements from right ones, such as a wrong stride, is no matter of the last bits: a few draws show it,
# with this many times the budget.
FEW_DRAWS = 3
SLACK = 8.0
LUCKY = 1e-3  # share of its budget at which an error is counted at least, since an error may happen to be 0


class Judgement(NamedTuple):
    """An error beside its budget, both relative to the reference."""

    error: float
    budget: float

    @property
    def used(self) -> float:
        """The share of the budget that is used."""
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
    """R, the most that rounding each element to nearest can cost."""
    info = torch.finfo(dtype)
    return (exact.abs() * (info.eps / 2)).clamp(min=info.smallest_normal * info.eps / 2)


def measure(result: Tensor, plain: Tensor, exact: Tensor) -> Measured | None:
    """The error of one draw; a NaN or an infinity gives an infinite error.

    None where the plain computation itself overflows and the result does not: such a draw sets no budget.
    """
    if exact.numel() == 0:
        return Judgement(0.0, 0.0), Judgement(0.0, 0.0)
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
    """The verdict over several draws, in the norm that is nearer to failing.

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


def geometric_mean(values: Sequence[float]) -> float:
    """Of non-negative numbers; 0 if one of them is."""
    return exp(fmean(log(value) for value in values)) if all(values) else 0.0
