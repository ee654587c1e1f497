"""The definition of the linear scan in plain PyTorch; all implementations are compared with it in float64."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def linear_scan(
    a: Tensor,
    b: Tensor,
    *,
    initial_state: Tensor | None = None,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `retrograd.linear_scan`. Computes in the dtype of its inputs; differentiated by autograd."""
    state_dtype = torch.promote_types(b.dtype, torch.float32)
    a = a.expand(b.shape)
    if cu_seqlens is None:
        states = b.new_zeros(b.shape[0], b.shape[2], dtype=state_dtype) if initial_state is None else initial_state
        h, final = _scan(a, b, states, reverse)
        return (h, final.to(state_dtype)) if return_final_state else h
    ends = cu_seqlens.tolist()
    outside = [torch.zeros_like(b[:, : ends[0]]), torch.zeros_like(b[:, ends[-1] :])]
    pieces, finals = [], []
    for s, (start, stop) in enumerate(pairwise(ends)):
        state = b.new_zeros(1, b.shape[2], dtype=state_dtype) if initial_state is None else initial_state[s : s + 1]
        h, final = _scan(a[:, start:stop], b[:, start:stop], state, reverse)
        pieces.append(h)
        finals.append(final.to(state_dtype))
    h = torch.cat([outside[0], *pieces, outside[1]], 1)
    return (h, torch.cat(finals)) if return_final_state else h


def _scan(a: Tensor, b: Tensor, h: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """One recurrence over the second axis; every h is rounded to the dtype of b."""
    steps = range(b.shape[1])
    out = []
    for t in reversed(steps) if reverse else steps:
        h = (a[:, t] * h + b[:, t]).to(b.dtype)
        out.append(h)
    if not out:
        return (a * b + h[:, None]).to(b.dtype), h  # empty, but computed from all inputs, for autograd
    return torch.stack(out[::-1] if reverse else out, 1), h
