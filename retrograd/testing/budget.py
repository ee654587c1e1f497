"""How large an error may be: twice that of the plain computation, plus the rounding of the output dtype.

Let r be the float64 reference, q the result under test, p the plain computation in the same dtypes. An element of q can
at best be r rounded to nearest, which costs at most

    R_i = max(u |r_i|, t / 2)

with u the unit roundoff of q's dtype (half the distance from 1 to the next number) and t its smallest subnormal number.
Errors are measured in two norms, and both must hold:

    ||q - r|| <= 2 ||p - r|| + ||R||

The Euclidean norm sees an error spread over an array; the maximum norm sees one wrong element among millions, which
the other would drown. Roundings that a computation cannot avoid on its way (that of s = x + residual to its own
dtype, say) are made by p as well, so they are in its error.

An array of few elements makes p's error a matter of luck, so errors of several draws are taken together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

# Draws are added until the smallest array of a call has this many elements in all, or there are MOST_DRAWS.
ELEMENTS = 256
MOST_DRAWS = 32


class Judgement(NamedTuple):
    """An error beside its budget, both relative to the reference in the norm that is nearer to failing."""

    error: float
    budget: float


def draws_for(smallest: int) -> int:
    """How many draws are judged together where the smallest array has this many elements."""
    return max(1, min(MOST_DRAWS, -(-ELEMENTS // max(smallest, 1))))


def rounding(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """R, the most that rounding each element to nearest can cost."""
    info = torch.finfo(dtype)
    return (exact.abs() * (info.eps / 2)).clamp(min=info.smallest_normal * info.eps / 2)


def judge(results: Sequence[Tensor], plains: Sequence[Tensor], exacts: Sequence[Tensor]) -> Judgement:
    """The error of a quantity over several draws; a NaN or infinity gives an infinite error.

    Raises:
        ValueError: the plain computation is not finite, so that it sets no budget: draw the case from a smaller range.
    """
    dtype = results[0].dtype
    result, plain, exact = (torch.cat([t.double().flatten() for t in part]) for part in (results, plains, exacts))
    if exact.numel() == 0:
        return Judgement(0.0, 0.0)
    if not bool(torch.isfinite(plain).all() and torch.isfinite(exact).all()):
        raise ValueError("the plain computation overflows, so it sets no budget")
    parts = (exact, result - exact, plain - exact, rounding(exact, dtype))
    found = []
    for order in (2.0, inf):
        scale, error, plain_error, rounded = (float(torch.linalg.vector_norm(part, order)) for part in parts)
        scale = scale or 1.0
        error = error / scale if error < inf else inf  # false for NaN too
        found.append(Judgement(error, (2 * plain_error + rounded) / scale))
    return max(found, key=lambda judgement: judgement.error / (judgement.budget or 1e-300))
