"""Packed sequences as the packages tell them apart, by a number for each step."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.compat.checks import expect, expect_dims
from retrograd.compat.memo import PerTensor
from retrograd.core.errors import bad_value


class Runs(NamedTuple):
    """The runs of equal numbers in the rows of `seq_idx`, rows one after another.

    Attributes:
        cu_seqlens: (S + 1,) int32, the start of each, and the end of the last.
        last: (batch,), the place of the last one of each row among all.
        seq_idx: (batch, seqlen), negative at padding.
    """

    cu_seqlens: Tensor
    last: Tensor
    seq_idx: Tensor

    def without_padding(self, out: Tensor) -> Tensor:
        """Results (batch, seqlen, ...), 0 at padding."""
        return _zero(self.seq_idx < 0, out)

    def states_without_padding(self, states: Tensor) -> Tensor:
        """States (S, ...), 0 for runs of padding."""
        return _zero(self.seq_idx.flatten()[self.cu_seqlens[:-1].long()] < 0, states)


class _Bounds(NamedTuple):
    """What is kept of `Runs`: not the tensor that it is kept for, which would then never be freed."""

    cu_seqlens: Tensor
    last: Tensor


_bounds = PerTensor[_Bounds]()


def runs_of(function: str, seq_idx: Tensor) -> Runs | None:
    """The runs of seq_idx, (batch, seqlen); None if it is empty.

    On a GPU the host waits for their number, once for all layers that get the same tensor.
    """
    if seq_idx.is_meta:
        raise bad_value(function, "device of seq_idx", "meta", "one with numbers, since sequences are counted")
    if not seq_idx.numel():
        return None
    bounds = _bounds(seq_idx, _counted)
    return Runs(bounds.cu_seqlens, bounds.last, seq_idx)


def check_bounds(function: str, cu_seqlens: Tensor, runs: Runs | None) -> None:
    """Raise unless cu_seqlens are numbers, and those of the runs where there are some."""
    expect_dims(function, "cu_seqlens", cu_seqlens, "(sequences + 1,)")
    expect(function, "cu_seqlens", cu_seqlens, cu_seqlens.shape, "(sequences + 1,)", "int32 or int64")
    if runs is not None and not torch.equal(cu_seqlens.int(), runs.cu_seqlens):
        bounds = f"the bounds of the runs of seq_idx, {runs.cu_seqlens.tolist()}"
        raise bad_value(function, "cu_seqlens", cu_seqlens.tolist(), bounds)


def joined(tensor: Tensor) -> Tensor:
    """Rows one after another: (batch, seqlen, ...) as (1, batch seqlen, ...); a view where strides allow it."""
    return tensor.flatten(0, 1)[None]


def _counted(seq_idx: Tensor) -> _Bounds:
    begins = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)
    cu_seqlens = F.pad(begins.flatten().nonzero().flatten(), (0, 1), value=begins.numel()).int()
    return _Bounds(cu_seqlens, begins.sum(1).cumsum(0) - 1)


def _zero(mask: Tensor, out: Tensor) -> Tensor:
    return torch.where(mask.view(*mask.shape, *[1] * (out.ndim - mask.ndim)), 0, out)
