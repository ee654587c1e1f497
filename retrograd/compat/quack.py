"""RMSNorm under the names and signatures of quack-kernels 0.6.5, on `retrograd.rms_norm`.

Where results differ from quack's, beyond the last bits of float32:

- s = x + residual is rounded to the dtype of the residual before it is normalised, so that the output, the gradients
  and the returned s are consistent; quack normalises the sum before it is rounded. With a `residual_dtype` other than
  the residual's, the sum is normalised in float32 here too.
- The gradient of the s that `rmsnorm(..., prenorm=True)` returns reaches x if there is no residual; quack drops it.
- The gradient of the bias has the dtype of the bias.
- Gradients are bitwise reproducible.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrograd import rms_norm
from retrograd.compat.checks import flag
from retrograd.compat.dtypes import widened
from retrograd.core.dtypes import KERNEL_FLOATS
from retrograd.core.errors import bad_dtype, bad_shape, bad_type, bad_value, check_option
from retrograd.core.spec import accumulator
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.launch import dtype_name

__all__ = ["rmsnorm", "rmsnorm_bwd", "rmsnorm_fwd"]


def rmsnorm(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    residual: Float[Tensor, "*batch N"] | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    weight_offset: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """With s = x + residual: s / sqrt(mean(s^2) + eps) * (weight + weight_offset) + bias, differentiable.

    Args:
        x: (..., N), float32, bfloat16 or float16, any strides.
        weight: (N,), or (H, N) with x (..., H, N): a weight for each head; of any of the dtypes.
        bias: like weight, of its shape.
        residual: like x, of any of the dtypes.
        out_dtype: dtype of the output; that of x by default.
        residual_dtype: dtype of the returned s; by default that of the residual, or of x if there is none.
        eps: added to the mean square.
        prenorm: also return s.
        weight_offset: added to the weight, in float32; needs a weight.

    Returns:
        The output (..., N); with `prenorm`, (output, s).

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what was passed.

    Example:
        >>> import torch
        >>> from retrograd.compat.quack import rmsnorm
        >>> x, stream = torch.randn(2, 16, 64), torch.randn(2, 16, 64, requires_grad=True)
        >>> y, stream_out = rmsnorm(x, torch.ones(64), residual=stream, prenorm=True)
        >>> (y.sum() + stream_out.sum()).backward()
        >>> stream.grad.shape
        torch.Size([2, 16, 64])
    """
    check_tensors("rmsnorm", {"x": x, "weight": weight, "bias": bias, "residual": residual}, required=1)
    dtype = _stream_dtype("rmsnorm", x, residual, residual_dtype)
    weight, bias, residual = widened(weight, x.dtype), widened(bias, x.dtype), _addend(residual, dtype)
    result = rms_norm(  # type: ignore[call-overload]
        x,
        weight,
        bias=bias,
        residual=residual,
        eps=eps,
        weight_offset=weight_offset,
        prenorm=prenorm,
        out_dtype=out_dtype,
    )
    return (result[0], result[1].to(dtype)) if prenorm else result


def rmsnorm_fwd(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    bias: Float[Tensor, " N"] | Float[Tensor, "H N"] | None = None,
    residual: Float[Tensor, "*batch N"] | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    store_rstd: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The forward pass of `rmsnorm` alone, with what `rmsnorm_bwd` needs. No autograd graph is built.

    Args:
        x, weight, bias, residual, out_dtype, residual_dtype, eps, weight_offset: as in `rmsnorm`.
        store_rstd: also return 1 / sqrt(mean(s^2) + eps).

    Returns:
        (output, s, rstd). s is x itself if there is neither a residual nor another `residual_dtype`. rstd (...) is
        float32, None without `store_rstd`.

    Raises:
        ValueError, TypeError: as `rmsnorm`.

    Example:
        >>> import torch
        >>> from retrograd.compat.quack import rmsnorm_bwd, rmsnorm_fwd
        >>> x, weight = torch.randn(16, 64), torch.ones(64)
        >>> y, s, rstd = rmsnorm_fwd(x, weight, store_rstd=True)
        >>> dx, dweight, _, _ = rmsnorm_bwd(s, weight, torch.ones_like(y), rstd)
        >>> dx.shape, dweight.shape
        (torch.Size([16, 64]), torch.Size([64]))
    """
    check_tensors("rmsnorm_fwd", {"x": x, "weight": weight, "bias": bias, "residual": residual}, required=1)
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise bad_type("rmsnorm_fwd", "out_dtype", out_dtype, "a torch.dtype or None")
    check_option("rmsnorm_fwd", "eps", eps, "float")
    check_option("rmsnorm_fwd", "weight_offset", weight_offset, "float")
    with_rstd = flag("rmsnorm_fwd", "store_rstd", store_rstd)
    dtype = _stream_dtype("rmsnorm_fwd", x, residual, residual_dtype)
    weight, bias, added = widened(weight, x.dtype), widened(bias, x.dtype), _addend(residual, dtype)
    with torch.no_grad():
        out, s, rstd = torch.ops.retrograd.rms_norm(
            x, weight, bias, added, None, eps, weight_offset, None, False, "silu", True, out_dtype
        )
        s = (x if residual is None else s).to(dtype)
    return out, s, rstd.view(x.shape[:-1]) if with_rstd else None


def rmsnorm_bwd(
    x: Float[Tensor, "*batch N"],
    weight: Float[Tensor, " N"] | Float[Tensor, "H N"] | None,
    dout: Float[Tensor, "*batch N"],
    rstd: Float[Tensor, "*batch"],
    dresidual_out: Float[Tensor, "*batch N"] | None = None,
    has_bias: bool = False,
    has_residual: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The backward pass of `rmsnorm`. No autograd graph is built.

    With g = dout * (weight + weight_offset) and x_hat = x * rstd, sums over the rows that share the weight::

        dx = rstd * (g - x_hat * mean(g * x_hat)) + dresidual_out
        dweight = sum(dout * x_hat),  dbias = sum(dout)

    Args:
        x: (..., N), what was normalised: the s of `rmsnorm_fwd`.
        weight: as in the forward pass.
        dout: like x, of any of the dtypes: the gradient of the output.
        rstd: (...), float32, from `rmsnorm_fwd`.
        dresidual_out: like x, of any of the dtypes: the gradient of s.
        has_bias: whether to compute dbias; needs a weight, whose shape and dtype it has.
        has_residual: whether to return dresidual.
        weight_offset: as in the forward pass.

    Returns:
        (dx, dweight, dbias, dresidual), None for absent ones. dx has the dtype of x. dresidual has the same
        values: it is dx itself, or, also without `has_residual`, a tensor of the dtype of `dresidual_out` if that
        differs from x's.

    Raises:
        ValueError, TypeError: before any launch, naming the argument, what was expected and what was passed.

    Example: see `rmsnorm_fwd`.
    """
    tensors = {"x": x, "dout": dout, "rstd": rstd, "weight": weight, "dresidual_out": dresidual_out}
    check_tensors("rmsnorm_bwd", tensors, required=3)
    _check_dtype("rmsnorm_bwd", "x", x.dtype, x)
    _check_gradients(x, dout, rstd, dresidual_out)
    check_option("rmsnorm_bwd", "weight_offset", weight_offset, "float")
    has_bias, has_residual = (
        flag("rmsnorm_bwd", "has_bias", has_bias),
        flag("rmsnorm_bwd", "has_residual", has_residual),
    )
    if has_bias and weight is None:
        raise bad_value("rmsnorm_bwd", "has_bias", has_bias, "False, since weight is None")
    # If the gradient of s has another dtype, the sum is computed in the wider one and rounded to both.
    wide = x.dtype if dresidual_out is None else torch.promote_types(x.dtype, dresidual_out.dtype)
    s, w = x.to(wide), widened(weight, wide)
    dsum = None if dresidual_out is None else dresidual_out.to(wide)
    x_, sum_ = (s, None) if dsum is None else (None, s)
    with torch.no_grad():
        ds, dw, db, *_ = torch.ops.retrograd.rms_norm_backward(
            dy=dout,
            dsum=dsum,
            x=x_,
            weight=w,
            bias=None,
            residual=None,
            gate=None,
            y=None,
            sum=sum_,
            rstd=rstd.contiguous().view(-1),
            **_shapes_and_dtypes(x=s, weight=w, bias=w if has_bias else None, residual=sum_, gate=None),
            wanted=[True, w is not None, has_bias, dsum is not None, False],
            eps=1e-6,  # already contained in rstd
            weight_offset=weight_offset,
            group_size=None,
            norm_before_gate=False,
            gate_activation="silu",
            prenorm=dsum is not None,
            out_dtype=dout.dtype,
        )
        dx = ds.to(x.dtype)
        dresidual = dx if has_residual else None
        if dresidual_out is not None and dresidual_out.dtype != x.dtype:
            dresidual = ds.to(dresidual_out.dtype)
        dweight = None if weight is None else dw.to(weight.dtype)
        dbias = db.to(weight.dtype) if weight is not None and has_bias else None
    return dx, dweight, dbias, dresidual


def _stream_dtype(name: str, x: Tensor, residual: Tensor | None, residual_dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of the returned s."""
    if residual_dtype is None:
        return x.dtype if residual is None else residual.dtype
    if residual is not None:
        _check_dtype(name, "residual", residual.dtype, x)
    if not isinstance(residual_dtype, torch.dtype):
        raise bad_type(name, "residual_dtype", residual_dtype, "a torch.dtype or None")
    _check_dtype(name, "residual_dtype", residual_dtype, x)
    return residual_dtype


def _addend(residual: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The residual, in a dtype that keeps the sum unrounded until it is rounded to `dtype`."""
    if residual is None or residual.dtype == dtype:
        return residual
    return residual.to(torch.promote_types(residual.dtype, torch.float32))


def _shapes_and_dtypes(**arguments: Tensor | None) -> dict[str, Any]:
    """The options by which the backward operator knows the forward call's shapes and dtypes."""
    shapes = {f"{name}_shape": None if t is None else t.shape for name, t in arguments.items()}
    return shapes | {f"{name}_dtype": None if t is None else t.dtype for name, t in arguments.items()}


def _check_dtype(name: str, argument: str, dtype: torch.dtype, x: Tensor) -> None:
    """Raise for a dtype that cannot be combined with that of x."""
    allowed = ("float64",) if x.dtype == torch.float64 else KERNEL_FLOATS
    if dtype_name(dtype) not in allowed:
        raise bad_dtype(name, argument, dtype_name(dtype), allowed)


def _check_gradients(x: Tensor, dout: Tensor, rstd: Tensor, dresidual_out: Tensor | None) -> None:
    """Check the tensors that the shapes passed to the backward operator do not cover."""
    for argument, gradient in (("dout", dout), ("dresidual_out", dresidual_out)):
        if gradient is None:
            continue
        if gradient.shape != x.shape:
            raise bad_shape("rmsnorm_bwd", argument, gradient.shape, f"the shape of x, {tuple(x.shape)}")
        _check_dtype("rmsnorm_bwd", argument, gradient.dtype, x)
    if rstd.shape != x.shape[:-1]:
        raise bad_shape("rmsnorm_bwd", "rstd", rstd.shape, f"{tuple(x.shape[:-1])}, one number for each row of x")
    expected = accumulator(dtype_name(x.dtype))
    if dtype_name(rstd.dtype) != expected:
        raise bad_dtype("rmsnorm_bwd", "rstd", dtype_name(rstd.dtype), (expected,))
