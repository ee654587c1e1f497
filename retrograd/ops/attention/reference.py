"""Attention by its definition, in plain PyTorch: every pair of a query and a key. Autograd differentiates it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .op import FORMS

MASK = 2**32 - 1
TANH = 2.0**20  # its steps in 16 bits: what two special instructions leave of its error, which is absolute (README.md)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_seed: Tensor | int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    segment_ids: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    backward: str = "auto",
    rounded: Callable[[Tensor, Tensor, torch.dtype], Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`retrograd.attention`, computed in float32 or float64; probabilities are rounded to the dtype of v.

    `rounded(out, lse, dtype)` rounds the result; it then also has the gradient that reaches lse by the probabilities,
    and a softcap's tanh is rounded where the dtype has 16 bits.
    """
    heads, share = q.shape[2], q.shape[2] // max(k.shape[2], 1)
    k, v = (t.repeat_interleave(share, 2) for t in (k, v))
    if segment_ids is not None:
        own_q, i, start = runs(segment_ids)
        own_k, j, place = own_q, i, i
    else:
        own_q, i, start = (t[None] for t in numbered(q, cu_seqlens_q))
        own_k, j, _ = (t[None] for t in numbered(k, cu_seqlens_k))
        place = i + shifts(q, k, cu_seqlens_q, cu_seqlens_k)[own_q]
    # (rows, 1, queries, keys), of a key: how far it lies after the query's position
    ahead = j[:, None, None, :] - place[:, None, :, None]
    visible = (own_q[:, None, :, None] == own_k[:, None, None, :]) & (own_q >= 0)[:, None, :, None]
    left, right = window or (-1, -1)
    if causal:
        visible &= ahead <= 0
    if right >= 0:
        visible &= ahead <= right
    if left >= 0:
        visible &= ahead >= -left

    compute = torch.promote_types(q.dtype, torch.float32)
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    x = torch.einsum("bihd,bjhd->bhij", q.to(compute), k.to(compute)) * factor
    if softcap is not None:
        bounded = torch.tanh(x / softcap)
        if rounded is not None and q.dtype != compute:
            bounded = bounded + (torch.round(bounded * TANH) / TANH - bounded).detach()
        x = softcap * bounded
    if bias is not None:
        x = x + bias
    if alibi_slopes is not None:
        x = x - of_rows(alibi_slopes, own_q, cu_seqlens_q) * ahead.abs()
    x = torch.where(visible, x, -math.inf)

    added = x.new_full((heads,), -math.inf) if sinks is None else sinks.to(x.dtype)
    added = added[None, :, None, None].expand(x.shape[0], -1, x.shape[2], 1)
    largest = torch.cat([x, added], 3).amax(3, keepdim=True).detach()
    largest = torch.where(largest.isfinite(), largest, 0)
    weights = torch.exp(x - largest)
    total = weights.sum(3, keepdim=True) + torch.exp(added - largest)
    some = total > 0
    total = torch.where(some, total, 1)
    lse = torch.where(some, largest + torch.log(total), -math.inf)[..., 0]
    p = weights / total if rounded is None else torch.exp(x - torch.where(some[..., 0], lse, 0).detach()[..., None])
    if dropout_p > 0:
        threshold = round(dropout_p * FORMS)
        p = torch.where(random(dropout_seed, p.shape, i, j, start) >= threshold, p / (1 - threshold / FORMS), 0)
    out = torch.einsum("bhij,bjhd->bihd", p.to(v.dtype).to(compute), v.to(compute))
    out = out.to(q.dtype) if rounded is None else rounded(out, lse, q.dtype)
    outside = own_q < 0
    out = torch.where(outside[:, :, None, None], 0, out)
    return (out, torch.where(outside[:, None], 0, lse)) if return_lse else out


class _Rounded(torch.autograd.Function):
    """Rounds the result; its gradient at lse is that of the rounded result, which is all that a backward pass has."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, lse: Tensor, dtype: torch.dtype) -> Tensor:
        rounded = out.to(dtype)
        ctx.save_for_backward(rounded)
        ctx.dtypes = out.dtype, lse.dtype
        return rounded

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, None]:
        (rounded,) = ctx.saved_tensors
        of_out, of_lse = ctx.dtypes
        dout = dout.to(of_out)
        return dout, -(dout * rounded.to(of_out)).sum(3).transpose(1, 2).to(of_lse), None


def plain(*arguments: Any, **options: Any) -> Any:
    """`attention` with the roundings that kernels share: of the saved result in gradients, and of a softcap's tanh."""
    return attention(*arguments, **options, rounded=_Rounded.apply)


def numbered(array: Tensor, bounds: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """For each step: the number of its sequence, -1 outside; its offset in the sequence; the sequence's start."""
    time = array.shape[1]
    step = torch.arange(time, device=array.device)
    if bounds is None:
        return torch.zeros_like(step), step, torch.zeros_like(step)
    own, start = torch.full_like(step, -1), torch.zeros_like(step)
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        own[begin:end], start[begin:end] = number, begin
    return own, step - start, start


def runs(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `numbered` by (row, step), for the runs of equal ids in each row, which are numbered through all rows."""
    own, start = torch.full_like(ids, -1, dtype=torch.int64), torch.zeros_like(ids, dtype=torch.int64)
    number = -1
    for row, of_steps in enumerate(ids.tolist()):
        for step, label in enumerate(of_steps):
            begins = step == 0 or label != of_steps[step - 1]
            number += begins
            own[row, step] = number if label >= 0 else -1
            start[row, step] = step if begins else start[row, step - 1]
    return own, torch.arange(ids.shape[1], device=ids.device) - start, start


def shifts(q: Tensor, k: Tensor, bounds_q: Tensor | None, bounds_k: Tensor | None) -> Tensor:
    """Tk - Tq of each sequence."""
    if bounds_q is None or bounds_k is None:
        return torch.tensor([k.shape[1] - q.shape[1]], device=q.device)
    return (bounds_k.diff() - bounds_q.diff()).long()


def of_rows(slopes: Tensor, own: Tensor, bounds: Tensor | None) -> Tensor:
    """The slopes by (batch, head, query, 1)."""
    if slopes.dim() == 1:
        return slopes[None, :, None, None]
    return slopes[:, :, None, None] if bounds is None else slopes[own[0]].T[None, :, :, None]


def random(seed: Tensor | int | None, shape: torch.Size, i: Tensor, j: Tensor, start: Tensor) -> Tensor:
    """Numbers from 0 to FORMS - 1 for (batch, head, query, key): two in each word that Philox4x32-7 returns.

    Of 32 keys, those that share a call are 2 c, 2 c + 1 and the ones 8, 16 and 24 after them: a thread of a tensor
    core's result has them. The counter is (call, i, b H + h, the sequence's start), the key (seed, 0). i, j and start
    are (rows, steps).
    """
    batch, heads, _, _ = shape
    row = torch.arange(batch * heads, device=i.device).reshape(batch, heads, 1, 1)
    call = j // 32 * 4 + j % 8 // 2
    i, start = i[:, None, :, None], start[:, None, :, None]
    counter = torch.broadcast_tensors(call[:, None, None, :], i, row, start)
    words = torch.stack(philox(counter, int(seed or 0) & MASK))
    j = j[:, None, None, :]
    word = (j % 32 // 8).expand(words.shape[1:])
    return words.gather(0, word[None])[0] >> (16 * (j % 2)) & (FORMS - 1)


def philox(counter: tuple[Tensor, ...], key: int) -> list[Tensor]:
    """Philox4x32 with seven rounds, of 32-bit words in int64."""
    a, b, c, d = counter
    keys = [key, 0]
    for _ in range(7):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = (second >> 32 & MASK) ^ b ^ keys[0], (first >> 32 & MASK) ^ d ^ keys[1]
        b, d = second & MASK, first & MASK
        keys = [keys[0] + 0x9E3779B9 & MASK, keys[1] + 0xBB67AE85 & MASK]
    return [a, b, c, d]
