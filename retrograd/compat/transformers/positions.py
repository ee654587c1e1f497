"""Packed sequences told apart by their positions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from retrograd.compat.memo import PerTensor

_sequences = PerTensor[Tensor | None]()


def sequences(position_ids: Tensor, batch: int, steps: int) -> Tensor | None:
    """(batch, steps) int32, the sequences that positions tell apart; None if there is one in each row.

    The host reads whether there are more, once for all layers.
    """
    if position_ids.ndim != 2 or position_ids.shape[1] != steps or steps < 2:
        return None  # of an image's axes, or of other steps
    found = _runs(position_ids) if torch.compiler.is_compiling() else _sequences(position_ids, _several)
    return None if found is None else found.expand(batch, -1)


def numbered(begins: Tensor) -> Tensor:
    """(B, T) int32, the number of each step's sequence; begins (B, T - 1) says which later steps begin one."""
    return pad(begins, (1, 0)).cumsum(-1).int()


def _several(position_ids: Tensor) -> Tensor | None:
    found = _runs(position_ids)
    return found if bool(found.any()) else None


def _runs(position_ids: Tensor) -> Tensor:
    """The number of the run of successive positions that each step is in."""
    return numbered(position_ids.diff() != 1)
