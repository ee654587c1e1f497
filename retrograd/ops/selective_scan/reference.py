"""The definition of the selective scan in plain PyTorch: step by step, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad, silu, softplus


def selective_scan(
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
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    return_final_state: bool = False,
    exp: Callable[[Tensor], Tensor] = torch.exp,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `retrograd.selective_scan`. Computes in the dtype of A, the decays with `exp`."""
    real = A.real.dtype
    u = x.to(real)
    delta = dt.to(real) if dt_bias is None else dt.to(real) + dt_bias
    if dt_softplus:
        delta = softplus(delta)
    channels = x.shape[-1]
    B, C = (_of_channels(matrix.to(A.dtype), x.shape[:2], channels) for matrix in (B, C))

    bounds = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    inside = slice(bounds[0], bounds[-1])
    if cu_seqlens is None:
        state = A.new_zeros(x.shape[0], *A.shape) if initial_state is None else initial_state
        y, final = _scan(u, delta, A, B, C, state, exp)
    else:
        ys, finals = [], []
        for s, (start, end) in enumerate(pairwise(bounds)):
            state = A.new_zeros(1, *A.shape) if initial_state is None else initial_state[s : s + 1]
            own = slice(start, end)
            y, final = _scan(u[:, own], delta[:, own], A, B[:, own], C[:, own], state, exp)
            ys.append(y)
            finals.append(final)
        y, final = torch.cat(ys, 1), torch.cat(finals)

    if D is not None:
        y = y + D * u[:, inside]
    if z is not None:
        y = y * silu(z[:, inside].to(real))
    y = pad(y.to(x.dtype), (0, 0, inside.start, x.shape[1] - inside.stop))
    return (y, final) if return_final_state else y


def hardware_exp(x: Tensor) -> Tensor:
    """Exp with a relative error of up to 2^-22, the bound of PTX for ex2.approx.f32, the hardware exponential of GPUs.

    Part of the error is random, modelled by the sine. Part is systematic: on an H200 the instruction is too low by 0.1
    to 0.8 of 2^-24 on average (`benchmarks/measure_ex2.py`), which adds up over the steps that a state remembers. It
    is modelled by half of 2^-24. The exponential of 0 is exact.
    """
    error = 2.0**-22 * torch.sin(1e5 * x.real.detach()) - 2.0**-25 * (x.real != 0)
    return torch.exp(x) * (1 + error)


plain = partial(selective_scan, exp=hardware_exp)


def _scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    exp: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    ys = []
    for u_t, delta_t, B_t, C_t in zip(*(v.unbind(1) for v in (u, delta, B, C)), strict=True):
        state = exp(delta_t[..., None] * A) * state + (delta_t * u_t)[..., None] * B_t
        y_t = (C_t * state).sum(-1)
        ys.append(2 * y_t.real if y_t.is_complex() else y_t)
    return torch.stack(ys, 1) if ys else u * 1, state


def _of_channels(matrix: Tensor, rows: tuple[int, ...], channels: int) -> Tensor:
    """B or C as (batch, time, channels or 1, state), from any of its three forms."""
    if matrix.dim() == 2:
        return matrix.expand(*rows, *matrix.shape)
    if matrix.dim() == 3:
        return matrix.unsqueeze(2)
    return matrix.repeat_interleave(channels // matrix.shape[2], 2)
