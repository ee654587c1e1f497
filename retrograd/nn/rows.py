"""Steps of several sequences, each with a row of a fixed number of slots: all shapes are known before the lengths are.

To attention the rows are packed sequences with gaps. Row s begins at slot s * capacity; its used slots are one sequence
of keys, and the others a second one, which no query belongs to. An empty sequence stands before all rows, so that there
is one even without rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from retrograd.core.packed import Steps
from retrograd.core.packed import steps as steps_of
from retrograd.core.torch.xp import torch_namespace


def owned(cu_seqlens: Int32[Tensor, " S+1"], time: int) -> Steps:
    """Which sequence each step of a packed row of `time` steps belongs to; offsets are int32."""
    return steps_of(torch_namespace(), cu_seqlens, time)


class Slots(NamedTuple):
    """Where steps that follow others are written, and the sequences of queries and keys that attention is called on.

    Attributes:
        position: (T,) int32, of each step in its sequence.
        slot: (T,), in all rows one after another; the one after the last for a step that has none.
        full: (T,), whether the step's sequence now has more steps than slots.
        steps: (S,) int32, the steps of each sequence, these included.
        cu_seqlens_q: (2 S + 2,) int32, of the queries.
        cu_seqlens_k: (2 S + 2,) int32, of the slots.
    """

    position: Int32[Tensor, " T"]
    slot: Int[Tensor, " T"]
    full: Bool[Tensor, " T"]
    steps: Int32[Tensor, " S"]
    cu_seqlens_q: Int32[Tensor, " 2*S+2"]
    cu_seqlens_k: Int32[Tensor, " 2*S+2"]


def slots(before: Int32[Tensor, " S"], capacity: int, cu_seqlens: Int32[Tensor, " S+1"], time: int) -> Slots:
    """The slots of `time` packed steps, which follow `before` steps of each sequence."""
    of = owned(cu_seqlens, time)
    owner, inside = of.owner.long(), of.inside  # a slot's number may need 64 bits
    position, steps = before[owner] + of.offset, before + cu_seqlens.diff()
    slot = torch.where(inside & (position < capacity), owner * capacity + position, len(before) * capacity)
    end = torch.arange(1, len(before) + 1, device=before.device, dtype=torch.int32) * capacity
    keys = torch.stack((end - capacity + steps.clamp(max=capacity), end), dim=1).flatten()
    queries = cu_seqlens[:, None].expand(-1, 2).flatten()
    return Slots(position, slot, inside & (steps > capacity)[owner], steps, queries, F.pad(keys, (2, 0)))


def placed(
    new: Float[Tensor, "T G P"], slot: Int[Tensor, " T"], sequences: int, capacity: int
) -> Float[Tensor, "S capacity G P"]:
    """Rows of zeros but for the steps in their slots."""
    flat = new.new_zeros(sequences * capacity + 1, *new.shape[1:])  # the last slot is for steps that have none
    flat[slot] = new
    return flat[:-1].unflatten(0, (sequences, capacity))


def written(
    rows: Float[Tensor, "S capacity G P"], new: Float[Tensor, "T G P"], slot: Int[Tensor, " T"]
) -> Float[Tensor, "S capacity G P"]:
    """A copy of the rows, in the dtype of `new`, with new steps in their slots."""
    flat = F.pad(rows.to(new.dtype).flatten(0, 1), (0, 0, 0, 0, 0, 1))  # the last slot is for steps that have none
    flat[slot] = new
    return flat[:-1].unflatten(0, rows.shape[:2])
