"""The gated delta rule by its definition, in plain PyTorch, step by step; and by blocks, for the error budget.

Autograd differentiates both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import pad

from .op import SMALLEST

BLOCK = 64  # steps of a block of `by_blocks`: the most that a path takes
Scan = Callable[..., tuple[Tensor, Tensor]]


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
    blocks: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `retrograd.gated_delta_rule`. Computes in float32, or in float64 if v is.

    With `blocks` it computes by blocks of steps, with operands of matrix products in the dtype
    of v. By default, float64 on a GPU is computed so: step by step would be slow, and in float64 both agree.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    batch, time, heads, V = v.shape
    K = q.shape[3]
    scale = K**-0.5 if scale is None else scale
    each = heads // max(q.shape[2], 1)
    blocks = blocks or (v.is_cuda and v.dtype == torch.float64)
    scan: Scan = partial(by_blocks if g.ndim == 3 else by_blocks_of_channels, dtype=v.dtype) if blocks else by_steps
    queries, keys = (unit(x.to(dtype)) if normalize_qk else x.to(dtype) for x in (q, k))
    queries, keys = (x.repeat_interleave(each, 2) for x in (queries, keys))
    arrays = (queries, keys, v.to(dtype), g.to(dtype), beta.to(dtype))
    bounds = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    rows = batch if cu_seqlens is None else 1
    pieces, finals = [], []
    for s, (start, stop) in enumerate(pairwise(bounds)):
        if initial_state is None:
            state = arrays[2].new_zeros(rows, heads, V, K)
        else:
            state = initial_state if cu_seqlens is None else initial_state[s : s + 1]
        o, state = scan(*(x[:, start:stop] for x in arrays), state)
        pieces.append(scale * o)
        finals.append(state)
    o = pad(torch.cat(pieces, 1), (0, 0, 0, 0, bounds[0], time - bounds[-1])).to(v.dtype)
    return (o, torch.cat(finals)) if return_final_state else o


def by_steps(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: o (B, T, H, V) without its scale, and the final state."""
    decays, pieces = g.exp(), []
    for t in range(v.shape[1]):
        query, key, decay = q[:, t], k[:, t], decays[:, t]
        state = state * (decay[..., None, None] if g.ndim == 3 else decay[:, :, None])
        wrong = v[:, t] - torch.einsum("bhvk,bhk->bhv", state, key)
        state = state + (beta[:, t, :, None] * wrong)[..., None] * key[:, :, None]
        pieces.append(torch.einsum("bhvk,bhk->bhv", state, query)[:, None])
    return torch.cat(pieces, 1) if pieces else v * 1, state


def by_blocks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The same by matrix products, with operands in a dtype, forward and backward. Symbols: README.md."""
    pieces = []
    for arrays in zip(*(x.split(BLOCK, 1) for x in (q, k, v, g, beta)), strict=True):
        if not arrays[0].shape[1]:
            continue
        queries, keys, values, log, rates = (x.transpose(1, 2) for x in arrays)  # (batch, heads, steps, ...)
        rates = rates[..., None, :]
        sums = log.cumsum(-1)
        grow, decays = sums.exp()[..., None], sums_between(sums).exp() * rates
        T = inverse(product(keys, keys.mT, dtype) * decays)
        D = product(T, values - product(keys, state.mT, dtype) * grow, dtype)
        o = product(product(queries, keys.mT, dtype) * decays, D, dtype) + product(queries, state.mT, dtype) * grow
        pieces.append(o.transpose(1, 2))
        rest = sums_after(log, sums).exp()[..., None]
        written = product((D * rest * rates.mT).mT, keys, dtype)
        state = decayed(state, sums[..., -1:, None].exp(), dtype) + written
    return torch.cat(pieces, 1) if pieces else v * 1, state


def by_blocks_of_channels(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`by_blocks` with a decay for each channel of K: rows of keys and queries have their decays before a product."""
    pieces = []
    for arrays in zip(*(x.split(BLOCK, 1) for x in (q, k, v, g, beta)), strict=True):
        if not arrays[0].shape[1]:
            continue
        queries, keys, values, log, rates = (x.transpose(1, 2) for x in arrays)  # (batch, heads, steps, ...)
        rates = rates[..., None, :]
        sums = log.cumsum(-2)
        grow = sums.exp()
        T = inverse(decayed_product(keys, keys, log, dtype) * rates)
        D = product(T, values - product(keys * grow, state.mT, dtype), dtype)
        scores = decayed_product(queries, keys, log, dtype) * rates
        o = product(scores, D, dtype) + product(queries * grow, state.mT, dtype)
        pieces.append(o.transpose(1, 2))
        rest = sums_after(log.mT, sums.mT).mT.exp()
        written = product((D * rates.mT).mT, keys * rest, dtype)
        state = decayed(state, sums[..., -1:, :].exp(), dtype) + written
    return torch.cat(pieces, 1) if pieces else v * 1, state


def decayed_product(targets: Tensor, sources: Tensor, log: Tensor, dtype: torch.dtype) -> Tensor:
    """(..., target, source): sums over channels of a target, a source and the decay between, by levels; see README.md.

    The log decays of a level are summed from the middle of two halves on, or up to it: sums of their own terms.
    """
    steps = log.shape[-2]
    number = torch.arange(steps, device=log.device)
    found = torch.diag_embed((targets * sources).sum(-1))
    half = 1
    while half < steps:
        halves = number // half
        later = halves[:, None] % 2 == 1
        middle = number // (2 * half) * (2 * half) + half - 1  # the last step of the first half
        after, upto = number[None] > middle[:, None], number[None] <= number[:, None]
        between = torch.where(later, after & upto, ~after & ~upto).to(log.dtype)
        factors = (between @ log).exp()
        pairs = (halves[:, None] == halves + 1) & later
        found = found + product(targets * factors, (sources * factors).mT, dtype) * pairs
        half *= 2
    return found


def inverse(below: Tensor) -> Tensor:
    """The inverse of I and what a matrix has below the diagonal."""
    below = below.tril(-1)
    one = torch.eye(below.shape[-1], dtype=below.dtype, device=below.device)
    return torch.linalg.solve_triangular(below + one, one.expand_as(below), upper=False, unitriangular=True)


def unit(x: Tensor) -> Tensor:
    """Rows divided by their norm."""
    return x * (x.square().sum(-1, keepdim=True) + SMALLEST).rsqrt()


def sums_between(sums: Tensor) -> Tensor:
    """The sum of log decays from after each source through each target, (..., target, source); -inf for later sources.

    A step's pair with itself has no decay, and so no gradient by way of one: beside strong decays it would be all that
    the gradient has.
    """
    steps = torch.arange(sums.shape[-1], device=sums.device)
    between = sums[..., :, None] - sums[..., None, :]
    return between.masked_fill(steps[:, None] == steps, 0.0).masked_fill(steps[:, None] < steps, -inf)


def sums_after(log: Tensor, sums: Tensor) -> Tensor:
    """The sum of the log decays after each step, rounded as the difference of two sums from the block's start.

    Its gradient is that of a sum of its own terms: by way of the difference, what a step gets from those before it
    would be a running sum less its last term, which has no digits left where decays are strong.
    """
    alone = pad(log[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)
    return alone + (sums[..., -1:] - sums - alone).detach()


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix product of operands rounded to a dtype; the operands of its gradient's products are rounded too."""
    found = _rounded(a, dtype) @ _rounded(b, dtype)
    found = found.view_as(found)
    if found.requires_grad:
        found.register_hook(lambda gradient: as_operand(gradient, dtype))
    return found


def as_operand(a: Tensor, dtype: torch.dtype) -> Tensor:
    """The values that an operand has. On a GPU one of fp32 is the sum of two of tf32, which have 11 bits each."""
    if dtype != torch.float32 or not a.is_cuda:
        return a.to(dtype).to(a.dtype)

    def tf32(x: Tensor) -> Tensor:
        return ((x.contiguous().view(torch.int32) + 2**12) & -(2**13)).view(torch.float32)

    high = tf32(a)
    return high + tf32(a - high)


def decayed(state: Tensor, decay: Tensor, dtype: torch.dtype) -> Tensor:
    """state * decay, where the gradient of the decay uses a saved state rounded to a dtype."""
    if dtype == state.dtype:
        return state * decay
    saved = _rounded(state, dtype).detach()
    return state * decay.detach() + (saved * decay - (saved * decay).detach())


def _rounded(a: Tensor, dtype: torch.dtype) -> Tensor:
    """The rounded values, with the gradient of the unrounded ones."""
    return a + (as_operand(a, dtype) - a).detach()


plain = partial(gated_delta_rule, blocks=True)
