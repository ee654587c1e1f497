"""The definition of RMSNorm in plain PyTorch; all implementations are compared with it in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "sigmoid": torch.sigmoid}


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    gate_activation: str = "silu",
    prenorm: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `retrograd.rms_norm`. Computes in the dtype of its inputs; differentiated by autograd."""
    act = ACTIVATIONS[gate_activation]
    s = x if residual is None else (x + residual).to(residual.dtype)
    u = s if gate is None or norm_before_gate else s * act(gate)
    groups = u.unflatten(-1, (-1, group_size or max(u.shape[-1], 1)))
    x_hat = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2)
    y = x_hat if weight is None else x_hat * (weight + weight_offset)
    if bias is not None:
        y = y + bias
    if gate is not None and norm_before_gate:
        y = y * act(gate)
    y = y.to(out_dtype or x.dtype)
    return (y, s) if prenorm else y
