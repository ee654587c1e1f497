"""Products of matrices whose elements do not depend on the number of rows, in PyTorch's own operations.

A BLAS adds in an order that depends on the sizes. Here the additions are exact, so that no order matters: numbers are
written as sums of integers of 20 bits times powers of two, and sums of products of such integers fit into float64.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

BITS = 20  # of an integer, without its sign
TERMS = 2 ** (52 - 2 * BITS)  # products of them that are added exactly
DIGITS = {torch.float32: 2, torch.float64: 3}  # integers of a number, so that less than a rounding error is left


def row_products(a: Tensor, b: Tensor) -> Tensor:
    """a b^T of matrices (M, K) and (N, K). An element's bits depend on its row of a and its row of b alone."""
    count = DIGITS[a.dtype]
    (a_digits, a_scale), (b_digits, b_scale) = _digits(a, count), _digits(b, count)
    total = torch.zeros((len(a), len(b)), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], TERMS):
        cut = slice(start, start + TERMS)
        for i, j in product(range(count), repeat=2):
            if i + j < count:
                total += (a_digits[i][:, cut] @ b_digits[j][:, cut].mT) * 2.0 ** (-(BITS + 1) * (i + j))
    found = (total * (a_scale * b_scale.mT)).to(a.dtype)
    finite = a_scale.isfinite() & b_scale.mT.isfinite()
    return torch.where(finite, found, torch.matmul(a, b.mT))


def _digits(rows: Tensor, count: int) -> tuple[list[Tensor], Tensor]:
    """Matrices of integers, and a power of two for each row: rows = sum of digits[i] / 2^((BITS + 1) i) times it.

    A row with an infinity or NaN has NaN for it.
    """
    largest = rows.abs().amax(1, keepdim=True) if rows.shape[1] else rows.new_zeros((len(rows), 1))
    _, exponent = torch.frexp(largest)
    scale = torch.ldexp(torch.ones_like(largest, dtype=torch.float64), exponent - BITS)
    rest, digits = rows / scale, []
    for _ in range(count):
        digits.append(rest.round())
        rest = (rest - digits[-1]) * 2.0 ** (BITS + 1)
    return digits, torch.where(largest.isfinite(), scale, torch.nan)
