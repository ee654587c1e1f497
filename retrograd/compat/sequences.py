"""Packed sequences as the packages tell them apart, by a number for each step."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from retrograd.core.errors import bad_value


class Runs(NamedTuple):
    """The runs of equal numbers in the rows of `seq_idx`, rows one after another.

    Attributes:
        cu_seqlens: (S + 1,) int32, the start of each, and the end of the last.
        last: (batch,), the number of the last one in each row.
        padding: (batch, seqlen), the steps with a negative number.
    """

    cu_seqlens: Tensor
    last: Tensor
    padding: Tensor


def runs_of(function: str, seq_idx: Tensor) -> Runs:
    """The runs of seq_idx, (batch, seqlen). On a GPU the host waits for their number."""
    if seq_idx.is_meta:
        raise bad_value(function, "device of seq_idx", "meta", "one with numbers, since sequences are counted")
    begins = F.pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=True)[:, : seq_idx.shape[1]]
    cu_seqlens = F.pad(begins.flatten().nonzero().flatten(), (0, 1), value=begins.numel()).int()
    return Runs(cu_seqlens, begins.sum(1).cumsum(0) - 1, seq_idx < 0)


def joined(tensor: Tensor) -> Tensor:
    """Rows one after another: (batch, seqlen, ...) as (1, batch seqlen, ...)."""
    return tensor.flatten(0, 1)[None]


def without_padding(runs: Runs, out: Tensor) -> Tensor:
    """The results (batch, seqlen, ...), 0 at padding."""
    return torch.where(runs.padding.view(*runs.padding.shape, *[1] * (out.ndim - 2)), 0, out)
