"""SSD by its definition, in plain PyTorch, step by step; and by matrix products of blocks, for the error budget.

Autograd differentiates both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import pad, silu, softplus

# Bytes of an operand -> steps of a block of `by_blocks`, as in the kernels. Sums of log decays go from a block's start,
# so their rounding errors grow with its length.
BLOCK = {2: 64, 4: 32, 8: 32}
Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, inf),
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    return_final_state: bool = False,
    scan: Scan | None = None,
    gated: Callable[[Tensor, torch.dtype], Tensor] = lambda y, dtype: y,
) -> Tensor | tuple[Tensor, Tensor]:
    """`retrograd.ssd`, computed in the dtype of A.

    `scan` computes y and the states, `gated` is applied to y before the gate. By default, float64 on a GPU is computed
    by blocks: step by step would be slow, and in float64 both agree.
    """
    if scan is None:
        scan = by_blocks if x.is_cuda and A.dtype == torch.float64 else by_steps
    u = x.to(A.dtype)
    delta = dt.to(A.dtype) if dt_bias is None else dt.to(A.dtype) + dt_bias
    if dt_softplus:
        delta = softplus(delta)
    delta = delta.clamp(*dt_limit)
    batch, time, heads, P = x.shape
    bounds = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    inside = slice(bounds[0], bounds[-1])
    of_heads = [matrix.repeat_interleave(heads // matrix.shape[2], 2) for matrix in (B, C)]
    rows = batch if cu_seqlens is None else 1
    ys, finals = [], []
    for s, (start, end) in enumerate(pairwise(bounds)):
        own = slice(start, end)
        if initial_state is None:
            state = A.new_zeros(rows, heads, P, B.shape[-1])
        else:
            state = initial_state if cu_seqlens is None else initial_state[s : s + 1]
        b, c = (matrix[:, own] for matrix in of_heads)
        y, final = scan(x[:, own], delta[:, own], A, b, c, state)
        ys.append(y)
        finals.append(final)
    y, final = torch.cat(ys, 1), torch.cat(finals)
    if D is not None:
        y = y + (D if D.dim() == 2 else D[:, None]) * u[:, inside]
    if z is not None:
        y = gated(y, _operand_dtype(x, B, C)) * silu(z[:, inside].to(A.dtype))
    y = pad(y.to(x.dtype), (0, 0, 0, 0, inside.start, time - inside.stop))
    return (y, final) if return_final_state else y


def by_steps(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: y (B, T, H, P) and the final state."""
    x, B, C = (array.to(A.dtype) for array in (x, B, C))
    ys = []
    for x_t, delta_t, B_t, C_t in zip(*(v.unbind(1) for v in (x, delta, B, C)), strict=True):
        decay = torch.exp(delta_t * A)
        state = decay[..., None, None] * state + (delta_t[..., None] * x_t)[..., None] * B_t[..., None, :]
        ys.append((state * C_t[..., None, :]).sum(-1))
    return torch.stack(ys, 1) if ys else x * 1, state


def by_blocks(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same by matrix products, with operands in the dtype of x, B and C and sums in fp32, forward and backward."""
    dtype = _operand_dtype(x, B, C)
    x, B, C = (array.to(A.dtype) for array in (x, B, C))
    ys = []
    steps = BLOCK[dtype.itemsize]
    for u, d, b, c in zip(*(array.split(steps, 1) for array in (x, delta, B, C)), strict=True):
        if not u.shape[1]:
            continue
        u, d, b, c = (array.transpose(1, 2) for array in (u, d, b, c))  # (batch, heads, steps, ...)
        log = d * A[:, None]
        sums = log.cumsum(-1)
        scores = product(c, b.mT, dtype) * sums_between(sums).exp() * d[..., None, :]
        y = product(scores, u, dtype) + product(c, state.mT, dtype) * sums.exp()[..., None]
        ys.append(y.transpose(1, 2))
        weight = sums_after(log, sums).exp() * d
        state = decayed(state, sums[..., -1:, None].exp(), dtype) + product((u * weight[..., None]).mT, b, dtype)
    return torch.cat(ys, 1) if ys else x * 1, state


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
    return with_rounded_gradient(_rounded(a, dtype) @ _rounded(b, dtype), dtype)


def as_operand(a: Tensor, dtype: torch.dtype) -> Tensor:
    """The values that an operand has. On a GPU one of fp32 is the sum of two of tf32, which have 11 bits each."""
    if dtype != torch.float32 or not a.is_cuda:
        return a.to(dtype).to(a.dtype)

    def tf32(x: Tensor) -> Tensor:
        return ((x.contiguous().view(torch.int32) + 2**12) & -(2**13)).view(torch.float32)

    high = tf32(a)
    return high + tf32(a - high)


def with_rounded_gradient(a: Tensor, dtype: torch.dtype) -> Tensor:
    """The same values; the gradient is rounded to a dtype."""
    a = a.view_as(a)
    if a.requires_grad:
        a.register_hook(lambda gradient: as_operand(gradient, dtype))
    return a


def decayed(state: Tensor, decay: Tensor, dtype: torch.dtype) -> Tensor:
    """state * decay, where the gradient of the decay uses a saved state rounded to a dtype."""
    if dtype == state.dtype:
        return state * decay
    saved = _rounded(state, dtype).detach()
    return state * decay.detach() + (saved * decay - (saved * decay).detach())


def _rounded(a: Tensor, dtype: torch.dtype) -> Tensor:
    """The rounded values, with the gradient of the unrounded ones."""
    return a + (as_operand(a, dtype) - a).detach()


def _operand_dtype(x: Tensor, B: Tensor, C: Tensor) -> torch.dtype:
    """The common dtype of x, B and C; fp32 where they differ."""
    return x.dtype if x.dtype == B.dtype == C.dtype else torch.promote_types(x.dtype, torch.float32)


plain = partial(ssd, scan=by_blocks, gated=with_rounded_gradient)
