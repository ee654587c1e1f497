"""Attention by its definition in plain PyTorch: every pair of a query and a key, with flash-attn's options."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    dropout_p: float = 0.0,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out (batch, seqlen_q, nheads, headdim_v) and lse (batch, nheads, seqlen_q); `kept` has the pairs not dropped."""
    heads = q.shape[2]
    k, v = (t.repeat_interleave(heads // t.shape[2], 2) for t in (k, v))
    place = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    ahead = torch.arange(k.shape[1]) - place  # how far a key lies after the query
    left, right = window_size
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        right = 0
    if left is not None and left >= 0:
        seen &= ahead >= -left
    if right is not None and right >= 0:
        seen &= ahead <= right
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (
        1 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    )
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.reshape(-1, heads, 1, 1) * ahead.abs()
    weights = torch.where(seen, scores.exp(), 0)
    total = weights.sum(-1)
    if learnable_sink is not None:
        total = total + learnable_sink.exp()[:, None]
    some = total > 0
    lse = torch.where(some, torch.where(some, total, 1).log(), -math.inf)
    p = weights / torch.where(some, total, 1)[..., None]
    if kept is not None:
        p = torch.where(kept, p, 0) / (1 - round(dropout_p * 2**16) / 2**16)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def packed(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, kept: Tensor | None = None, **options: object
) -> tuple[Tensor, Tensor]:
    """The same for packed sequences: out (total, nheads, headdim_v) and lse (nheads, total)."""
    outs, lses = [], []
    slopes = options.pop("alibi_slopes", None)
    for n, ((begin, end), (first, last)) in enumerate(
        zip(pairwise(ends_q.tolist()), pairwise(ends_k.tolist()), strict=True)
    ):
        own = {"kept": None if kept is None else kept[n : n + 1, :, : end - begin, : last - first]}
        if isinstance(slopes, Tensor):
            own["alibi_slopes"] = slopes if slopes.ndim == 1 else slopes[n : n + 1]
        out, lse = attention(q[None, begin:end], k[None, first:last], v[None, first:last], **own, **options)  # type: ignore[arg-type]
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)
