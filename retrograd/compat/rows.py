"""Rows of a pool of states, selected for each request by an index. No index is read on the host."""

from __future__ import annotations

import torch
from torch import Tensor


def read_rows(pool: Tensor, indices: Tensor | None) -> Tensor:
    """The row of each request; an arbitrary row for a negative index, which is padding."""
    return pool if indices is None else pool[indices.clamp(min=0).long()]


def write_rows(pool: Tensor, indices: Tensor | None, rows: Tensor) -> None:
    """Write the rows back, except those of padding."""
    if indices is None:
        pool.copy_(rows)
        return
    # Padding writes to row 0 the value that the row gets anyway, so that colliding writes are equal.
    first = _like(indices == 0, rows)
    value = torch.where(first.any(0), torch.where(first, rows, 0).sum(0, dtype=rows.dtype), pool[0])
    pool[indices.clamp(min=0).long()] = torch.where(_like(indices < 0, rows), value, rows)


def zero_padding(indices: Tensor | None, out: Tensor) -> Tensor:
    """The results, 0 for padding."""
    return out if indices is None else torch.where(_like(indices < 0, out), 0, out)


def _like(mask: Tensor, rows: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (rows.ndim - 1)).expand_as(rows)
