"""The definitions of the packages' functions in plain PyTorch, step by step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x); PyTorch's softplus omits a term of 2e-9 above 20."""
    return torch.logaddexp(x, torch.zeros_like(x))


def matrix_at(matrix: Tensor, t: int, dim: int, is_complex: bool) -> Tensor:
    """B or C of selective_scan_fn at a step: (batch or 1, dim, dstate)."""
    if matrix.ndim == 2:
        return matrix[None]
    grouped = matrix if matrix.ndim == 4 else matrix[:, None]
    part = grouped[..., 2 * t] + 1j * grouped[..., 2 * t + 1] if is_complex else grouped[..., t]
    return part.repeat_interleave(dim // part.shape[1], 1)


def scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """selective_scan_fn, with the last state."""
    delta = delta if delta_bias is None else delta + delta_bias[:, None]
    delta = softplus(delta) if delta_softplus else delta
    batch, dim, steps = u.shape
    state = A.new_zeros(batch, dim, A.shape[1])
    ys = []
    for t in range(steps):
        inputs = (delta[..., t] * u[..., t])[..., None] * matrix_at(B, t, dim, A.is_complex())
        state = torch.exp(delta[..., t, None] * A) * state + inputs
        y = (state * matrix_at(C, t, dim, A.is_complex())).sum(-1)
        ys.append(2 * y.real if A.is_complex() else y)
    out = torch.stack(ys, -1)
    out = out if D is None else out + D[:, None] * u
    return (out if z is None else out * F.silu(z)), state


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None = None, silu: bool = False
) -> Tensor:
    """causal_conv1d_fn that follows the inputs `before`."""
    width = weight.shape[1]
    before = x.new_zeros(*x.shape[:2], width - 1) if before is None else before
    y = F.conv1d(torch.cat([before, x], -1), weight[:, None], bias, groups=x.shape[1])
    return F.silu(y) if silu else y


def rms_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6, group_size: int | None = None
) -> Tensor:
    """x over its root mean square, in groups of columns."""
    groups = x.unflatten(-1, (-1, group_size or x.shape[-1]))
    normalised = (groups * (groups.square().mean(-1, keepdim=True) + eps).rsqrt()).flatten(-2) * weight
    return normalised if bias is None else normalised + bias


def layer_norm(x: Tensor, eps: float, group_size: int | None = None) -> Tensor:
    """x without its mean, over its standard deviation, in groups of columns."""
    groups = x.unflatten(-1, (-1, group_size or x.shape[-1]))
    centred = groups - groups.mean(-1, keepdim=True)
    return (centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt()).flatten(-2)


def mamba_inner(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """mamba_inner_fn; a B or C that is passed is not projected from x."""
    rank, numbers = delta_proj_weight.shape[1], A.shape[1] * (2 if A.is_complex() else 1)
    x, z = xz.chunk(2, 1)
    x = convolution(x, conv1d_weight[:, 0], conv1d_bias, silu=True)
    projected = x.mT @ x_proj_weight.T
    dt, B_rows, C_rows = projected[..., :rank], projected[..., rank : rank + numbers], projected[..., -numbers:]
    dt = dt @ delta_proj_weight.T
    dt = dt if dt_rms_weight is None else rms_norm(dt, dt_rms_weight, eps=b_c_dt_rms_eps)

    def matrix(tensor: Tensor | None, rows: Tensor, bias: Tensor | None, weight: Tensor | None) -> Tensor:
        if tensor is not None:
            return tensor
        rows = rows if bias is None else rows + bias
        rows = rows if weight is None else rms_norm(rows, weight, eps=b_c_dt_rms_eps)
        return rows.unflatten(-1, (-1, 2)).transpose(1, 2).flatten(2) if A.is_complex() else rows.mT

    B = matrix(B, B_rows, B_proj_bias, b_rms_weight)
    C = matrix(C, C_rows, C_proj_bias, c_rms_weight)
    y, _ = scan(x, dt.mT, A, B, C, D, z, delta_bias, delta_softplus)
    return F.linear(y.mT, out_proj_weight, out_proj_bias)
