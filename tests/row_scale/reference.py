"""The definition of row_scale."""

from __future__ import annotations

from torch import Tensor


def row_scale(x: Tensor, scale: Tensor) -> Tensor:
    """See `retrograd.row_scale`."""
    return (x * scale[:, None]).to(x.dtype)
