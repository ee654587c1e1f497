"""The gated delta rule by its definition, in plain PyTorch, step by step; autograd differentiates it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from .op import SMALLEST


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    return_final_state: bool = False,
    normalize_qk: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `retrograd.gated_delta_rule`. Computes in float32, or in float64 if v is."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    batch, time, heads, V = v.shape
    K = q.shape[3]
    scale = K**-0.5 if scale is None else scale
    each = heads // max(q.shape[2], 1)
    queries, keys = (unit(x.to(dtype)) if normalize_qk else x.to(dtype) for x in (q, k))
    queries, keys = (x.repeat_interleave(each, 2) for x in (queries, keys))
    values, decays, rates = v.to(dtype), g.to(dtype).exp(), beta.to(dtype)
    bounds = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    rows = batch if cu_seqlens is None else 1
    pieces, finals = [torch.zeros_like(values[:, : bounds[0]])], []
    for s, (start, stop) in enumerate(pairwise(bounds)):
        if initial_state is None:
            state = values.new_zeros(rows, heads, V, K)
        else:
            state = initial_state if cu_seqlens is None else initial_state[s : s + 1]
        for t in range(start, stop):
            key, decay = keys[:, t], decays[:, t]
            state = state * (decay[..., None, None] if g.ndim == 3 else decay[:, :, None])
            wrong = values[:, t] - torch.einsum("bhvk,bhk->bhv", state, key)
            state = state + (rates[:, t, :, None] * wrong)[..., None] * key[:, :, None]
            pieces.append(scale * torch.einsum("bhvk,bhk->bhv", state, queries[:, t])[:, None])
        finals.append(state)
    pieces.append(torch.zeros_like(values[:, bounds[-1] :]))
    o = torch.cat(pieces, 1).to(v.dtype)
    return (o, torch.cat(finals)) if return_final_state else o


def unit(x: Tensor) -> Tensor:
    """Rows divided by their norm."""
    return x * (x.square().sum(-1, keepdim=True) + SMALLEST).rsqrt()
