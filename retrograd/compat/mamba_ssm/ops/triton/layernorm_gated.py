"""`mamba_ssm.ops.triton.layernorm_gated`: the RMS norm with a SiLU gate and groups, and LayerNorm, PyTorch's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import retrograd
from retrograd.compat.checks import expect_if_given, expect_integer, expect_norm, flag
from retrograd.compat.dtypes import arithmetic, beside
from retrograd.core.errors import bad_value
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
    """LayerNorm of x, times silu(z), by PyTorch in float32; with is_rms_norm `rmsnorm_fn`, whose arguments it has."""
    me = "layernorm_fn"
    if flag(me, "is_rms_norm", is_rms_norm):
        return rmsnorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate)
    check_tensors(me, {"x": x, "weight": weight, "bias": bias, "z": z}, required=2)
    expect_norm(me, x, weight, bias)
    expect_if_given(me, "z", z, x.shape, "the shape of x")
    before = flag(me, "norm_before_gate", norm_before_gate)
    size = x.shape[-1] if group_size is None else group_size
    expect_integer(me, "group_size", size, 0)
    if x.shape[-1] % max(size, 1):
        raise bad_value(me, "group_size", size, f"a divisor of the last dimension of x, {x.shape[-1]}")
    y, gate = x.to(arithmetic(x)), None if z is None else F.silu(z.to(arithmetic(x)))
    if gate is not None and not before:
        y = y * gate
    if y.numel():
        y = F.layer_norm(y.unflatten(-1, (-1, size)), (size,), None, None, eps).flatten(-2)
    y = y * weight.to(y.dtype)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return (y if gate is None or not before else y * gate).to(x.dtype)


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


class LayerNorm(nn.Module):
    """`layernorm_fn` with its weight and bias, (hidden_size,)."""

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
        self.bias = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """The norm, gated by z."""
        return layernorm_fn(x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate)


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
