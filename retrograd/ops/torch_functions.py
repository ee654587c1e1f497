"""The public functions for PyTorch: written by `make functions` from `ops/*/op.py`, not by hand."""

from __future__ import annotations

from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from retrograd.core.torch_arguments import torch_dtype
from retrograd.core.torch_op import bind

from .rms_norm.op import OP as RMS_NORM

__all__ = ["rms_norm"]

_rms_norm = bind(RMS_NORM)


@overload
def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    residual: Float[Tensor, "*batch N"] | None = ...,
    gate: Float[Tensor, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[False] = ...,
    out_dtype: torch.dtype | None = ...,
) -> Float[Tensor, "*batch N"]: ...


@overload
def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = ...,
    residual: Float[Tensor, "*batch N"] | None = ...,
    gate: Float[Tensor, "*batch N"] | None = ...,
    eps: float = ...,
    weight_offset: float = ...,
    group_size: int | None = ...,
    norm_before_gate: bool = ...,
    prenorm: Literal[True],
    out_dtype: torch.dtype | None = ...,
) -> tuple[Float[Tensor, "*batch N"], Float[Tensor, "*batch N"]]: ...


def rms_norm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    *,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    residual: Float[Tensor, "*batch N"] | None = None,
    gate: Float[Tensor, "*batch N"] | None = None,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    group_size: int | None = None,
    norm_before_gate: bool = False,
    prenorm: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalisation of the last dimension, with its neighbours fused in.

    With s = x + residual and z = gate::

        y = s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias        no gate
        y = u / sqrt(mean(u^2) + eps) * ... ,  u = s * silu(z)                 gate
        y = (s / sqrt(mean(s^2) + eps) * ... ) * silu(z)                       gate, norm_before_gate

    Sums are taken in float32. s is rounded to the dtype of the residual before it is normalised. All gradients are
    bitwise reproducible; a row's outputs and gradients do not depend on the batch around it.

    Args:
        x: (..., N), float32, bfloat16 or float16, any strides. float64 runs on the portable path.
        weight: (N,), or (H, N) with x (..., H, N): a weight for each head. float32 or the dtype of x.
        bias: like weight.
        residual: like x, of any of the dtypes; added to x first.
        gate: like x, of any of the dtypes.
        eps: added to the mean square.
        weight_offset: added to the weight, in float32; 1.0 gives Gemma's norm.
        group_size: columns that are normalised together; all N by default. Must divide N.
        norm_before_gate: gate the output instead of the input.
        prenorm: also return s.
        out_dtype: dtype of y; that of x by default.

    Returns:
        y (..., N); with `prenorm`, (y, s), where s has the dtype of the residual. Without one s is a copy of x, which
        may be written into.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what came.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4; the gated form is Mamba-2's
    (Dao and Gu, 2024).

    Example:
        >>> import torch, retrograd
        >>> x = torch.randn(2, 16, 64, requires_grad=True)
        >>> weight = torch.ones(64, requires_grad=True)
        >>> y, stream = retrograd.rms_norm(x, weight, residual=torch.randn(2, 16, 64), prenorm=True)
        >>> (y.sum() + stream.sum()).backward()
        >>> weight.grad.shape
        torch.Size([64])
    """
    y, sum_ = _rms_norm(
        {"x": x, "weight": weight, "bias": bias, "residual": residual, "gate": gate},
        {
            "eps": eps,
            "weight_offset": weight_offset,
            "group_size": group_size,
            "norm_before_gate": norm_before_gate,
            "prenorm": prenorm,
            "out_dtype": torch_dtype("rms_norm", "out_dtype", out_dtype),
        },
    )
    if prenorm and residual is None:
        sum_ = x.clone()
    return (y, sum_) if prenorm else y  # type: ignore[return-value]
