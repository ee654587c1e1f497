"""The definition of row_butterfly."""

from __future__ import annotations

from torch import Tensor


def row_butterfly(x: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """See `retrograd.row_butterfly`."""
    return (x + half[:, None]).to(x.dtype), (x - half[:, None]).to(x.dtype)
