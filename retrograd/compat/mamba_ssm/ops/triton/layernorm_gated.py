"""`mamba_ssm.ops.triton.layernorm_gated`: the RMS norm with a SiLU gate and groups. LayerNorm is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import retrograd
from retrograd.compat.checks import expect_if_given, expect_norm, flag
from retrograd.compat.dtypes import beside
from retrograd.core.torch.arguments import check_tensors


def rmsnorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> Tensor:
    """RMS norm of x, times silu(z), or RMS norm of x silu(z) without `norm_before_gate`. On `retrograd.rms_norm`.

    Args:
        x: (..., dim).
        weight: (dim,).
        bias: (dim,), or None.
        z: like x: the gate.
        eps: added to the mean square.
        group_size: columns that are normalised together; all by default.
        norm_before_gate: whether the gate multiplies the norm's output instead of its input.

    Returns:
        y shaped as x, in its dtype.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    me = "rmsnorm_fn"
    check_tensors(me, {"x": x, "weight": weight, "bias": bias, "z": z}, required=2)
    expect_norm(me, x, weight, bias)
    expect_if_given(me, "z", z, x.shape, "the shape of x")
    return retrograd.rms_norm(
        x,
        beside(x, weight),
        bias=beside(x, bias),
        gate=z,
        eps=eps,
        group_size=group_size,
        norm_before_gate=flag(me, "norm_before_gate", norm_before_gate),
    )


def layernorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> Tensor:
    """`rmsnorm_fn` where is_rms_norm is True; LayerNorm is refused."""
    if not flag("layernorm_fn", "is_rms_norm", is_rms_norm):
        raise NotImplementedError("layernorm_fn: is_rms_norm is False, expected True: there is no LayerNorm here")
    return rmsnorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate)


def rms_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    upcast: bool = True,
) -> Tensor:
    """`rmsnorm_fn`; without `upcast` too, sums are in float32."""
    flag("rms_norm_ref", "upcast", upcast)
    return rmsnorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate)


class RMSNorm(nn.Module):
    """`rmsnorm_fn` with its weight, (hidden_size,), and no bias."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.group_size = group_size
        self.norm_before_gate = norm_before_gate
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """The norm, gated by z."""
        return rmsnorm_fn(x, self.weight, None, z, self.eps, self.group_size, self.norm_before_gate)
