"""`mamba_ssm.ops.triton.layer_norm`: the RMS norm with a residual stream, and LayerNorm, which is PyTorch's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import retrograd
from retrograd.compat.checks import expect_if_given, expect_norm, flag, refuse
from retrograd.compat.dtypes import arithmetic, beside
from retrograd.core.errors import bad_value
from retrograd.core.torch.arguments import check_tensors


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: None = None,
    weight1: None = None,
    bias1: None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """RMS norm of dropout(x * rowscale) + residual, on `retrograd.rms_norm`.

    Args:
        x: (..., dim).
        weight: (dim,).
        bias: (dim,), or None.
        residual: like x: the residual stream, in any floating dtype.
        x1, weight1, bias1: refused: a second branch.
        eps: added to the mean square.
        dropout_p: probability with which an element of x is dropped.
        rowscale: shaped as x without its last dimension: a factor of each row of x.
        prenorm: also return the sum that is normalised, in the dtype of the residual, or of x if there is none.
        residual_in_fp32: return that sum in float32 if there is no residual.
        return_dropout_mask: refused.

    Returns:
        y shaped as x, in its dtype, or (y, sum).

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "rms_norm_fn"
    refuse(me, "", x1=x1, weight1=weight1, bias1=bias1, return_dropout_mask=return_dropout_mask)
    with_sum, in_fp32 = flag(me, "prenorm", prenorm), flag(me, "residual_in_fp32", residual_in_fp32)
    branch = _branch(me, x, weight, bias, residual, rowscale, dropout_p)
    results = retrograd.rms_norm(  # type: ignore[call-overload]
        branch,
        beside(branch, weight),
        bias=beside(branch, bias),
        residual=residual,
        eps=eps,
        prenorm=with_sum and residual is not None,
        out_dtype=x.dtype,
    )
    if with_sum and residual is None:  # a copy, so that the caller may write into it
        return results, branch.to(torch.float32 if in_fp32 else x.dtype, copy=True)
    return results


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: None = None,
    weight1: None = None,
    bias1: None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """LayerNorm of dropout(x * rowscale) + residual, by PyTorch; with is_rms_norm it is `rms_norm_fn`.

    The arguments are those of `rms_norm_fn`. The sum is rounded to the dtype of the residual before it is normalised,
    in float32.
    """
    me = "layer_norm_fn"
    if flag(me, "is_rms_norm", is_rms_norm):
        return rms_norm_fn(
            x,
            weight,
            bias,
            residual,
            x1,
            weight1,
            bias1,
            eps,
            dropout_p,
            rowscale,
            prenorm,
            residual_in_fp32,
            return_dropout_mask,
        )
    refuse(me, "", x1=x1, weight1=weight1, bias1=bias1, return_dropout_mask=return_dropout_mask)
    with_sum, in_fp32 = flag(me, "prenorm", prenorm), flag(me, "residual_in_fp32", residual_in_fp32)
    branch = _branch(me, x, weight, bias, residual, rowscale, dropout_p)
    if residual is None:
        total = branch.to(torch.float32 if in_fp32 and with_sum else branch.dtype)
    else:
        total = (branch.to(arithmetic(x)) + residual.to(arithmetic(x))).to(residual.dtype)
    y = layer_norm(total, weight, bias, eps).to(x.dtype)
    if not with_sum:
        return y
    return y, total.to(total.dtype if in_fp32 or residual is not None else x.dtype, copy=residual is None)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """PyTorch's LayerNorm of the last dimension; in float32 unless all have the dtype of x."""
    if weight.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        x, weight = x.to(arithmetic(x)), weight.to(arithmetic(x))
        bias = None if bias is None else bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _branch(
    me: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    rowscale: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """What is added to the residual, of checked arguments: dropout(x * rowscale)."""
    check_tensors(me, {"x": x, "weight": weight, "bias": bias, "residual": residual, "rowscale": rowscale}, required=2)
    expect_norm(me, x, weight, bias)
    expect_if_given(me, "residual", residual, x.shape, "the shape of x")
    expect_if_given(me, "rowscale", rowscale, x.shape[:-1], "the rows of x")
    if not isinstance(dropout_p, int | float) or not 0 <= dropout_p < 1:
        raise bad_value(me, "dropout_p", dropout_p, "at least 0 and below 1")
    branch = x
    if rowscale is not None or dropout_p:
        branch = x.to(arithmetic(x))  # the scaled x is rounded only once, in the sum
    if rowscale is not None:
        branch = branch * rowscale[..., None].to(branch.dtype)
    return F.dropout(branch, dropout_p) if dropout_p else branch


def rms_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: None = None,
    weight1: None = None,
    bias1: None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    dropout_mask: None = None,
    dropout_mask1: None = None,
    upcast: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`rms_norm_fn`; without `upcast` too, sums are in float32. dropout_mask and dropout_mask1 are refused."""
    me = "rms_norm_ref"
    refuse(me, "", dropout_mask=dropout_mask, dropout_mask1=dropout_mask1)
    flag(me, "upcast", upcast)
    return rms_norm_fn(x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm)


def layer_norm_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: None = None,
    weight1: None = None,
    bias1: None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    dropout_mask: None = None,
    dropout_mask1: None = None,
    upcast: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`layer_norm_fn`; without `upcast` too, sums are in float32. dropout_mask and dropout_mask1 are refused."""
    me = "layer_norm_ref"
    refuse(me, "", dropout_mask=dropout_mask, dropout_mask1=dropout_mask1)
    flag(me, "upcast", upcast)
    return layer_norm_fn(x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm)


class RMSNorm(nn.Module):
    """`rms_norm_fn` with its weight, (hidden_size,), and no bias."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0 else None
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1."""
        nn.init.ones_(self.weight)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The norm, with dropout in training."""
        return rms_norm_fn(
            x,
            self.weight,
            None,
            residual=residual,
            eps=self.eps,
            dropout_p=self.drop.p if self.drop is not None and self.training else 0.0,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
        )
