"""The third result of `return_attn_probs`: the probabilities of all pairs, with the sign of their dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .calls import Call
from .packing import owners

MOST = 512  # of a value's channels


@torch.no_grad()
def signed_probabilities(
    call: Call, q: Tensor, k: Tensor, arguments: dict[str, Any], longest_q: int, longest_k: int
) -> Tensor:
    """(sequences, heads, longest_q, longest_k): negative where dropout drops a pair.

    With the unit vectors as values, the result of attention is its probabilities. Those of zero queries without slopes
    are equal for all visible keys, so that zeros among them are the pairs that are dropped.
    """
    bounds_q, bounds_k = (arguments.get(f"cu_seqlens_{side}") for side in "qk")
    place = torch.arange(k.shape[1], device=k.device) if bounds_k is None else owners(bounds_k, k.shape[1])[1]
    without = {name: value for name, value in arguments.items() if name != "dropout_seed"} | {"dropout_p": 0.0}
    uniform = arguments | {"alibi_slopes": None, "sinks": None}
    parts = []
    for first in range(0, longest_k, MOST):
        key = torch.arange(first, min(first + MOST, longest_k), device=k.device)
        units = (place[:, None] == key).to(k.dtype)[None, :, None].expand(*k.shape[:3], -1)
        found = call.attend(q, k, units, **without)[0]
        kept = call.attend(torch.zeros_like(q), k, units, **uniform)[0] > 0
        parts.append(torch.where(kept, found, -found))
    pairs = torch.cat(parts, -1) if parts else q.new_zeros((*q.shape[:3], 0))
    if bounds_q is None:
        return pairs.transpose(1, 2)
    owner, step = owners(bounds_q, q.shape[1])
    inside = (owner < len(bounds_q) - 1) & (step >= 0) & (step < longest_q)
    result = q.new_zeros((len(bounds_q) - 1, q.shape[2], longest_q, longest_k))
    result[owner[inside], :, step[inside]] = pairs[0, inside]
    return result
