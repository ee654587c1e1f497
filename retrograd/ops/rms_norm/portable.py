"""RMSNorm without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

`xp` is one of `retrograd.core.xp`'s namespaces. Inputs and outputs are those of the kernels: the backward pass takes s
and rstd.
"""

from __future__ import annotations

from typing import Any

from retrograd.core.xp import Namespace, silu_grad

from .spec import Spec


def forward(
    xp: Namespace, spec: Spec, x: Any, weight: Any, bias: Any, residual: Any, gate: Any
) -> tuple[Any, Any | None, Any]:
    """(y, s, rstd); s is None where there is no residual."""
    compute, options = spec.compute_dtype, spec.options
    s = x
    if residual is not None:
        s = xp.astype(xp.astype(x, compute) + xp.astype(residual, compute), spec.sum_dtype)
    u = _gate_input(xp, spec, s, gate)
    groups = xp.reshape(u, _grouped(spec))
    rstd = 1 / xp.sqrt(xp.mean(groups * groups) + options.eps)
    y = _scale(xp, spec, xp.reshape(groups * rstd, spec.x.shape), weight, bias)
    if spec.gate_last:
        y = y * xp.silu(xp.astype(gate, compute))
    rstd = xp.reshape(rstd, (spec.rows * spec.heads,))
    return _result(xp, y, spec.out_dtype), None if residual is None else _result(xp, s, spec.sum_dtype), rstd


def backward(
    xp: Namespace, spec: Spec, dy: Any, dsum: Any, s: Any, weight: Any, bias: Any, gate: Any, rstd: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """(dx, dresidual, dgate, dweight, dbias), None where there is no such input; the formulas are in README.md."""
    compute, options = spec.compute_dtype, spec.options
    rstd = xp.reshape(rstd, (*_grouped(spec)[:-1], 1))
    x_hat = xp.reshape(xp.reshape(_gate_input(xp, spec, s, gate), _grouped(spec)) * rstd, spec.x.shape)
    z = None if gate is None else xp.astype(gate, compute)
    dy = xp.astype(dy, compute)
    dv = dy * xp.silu(z) if spec.gate_last else dy
    g = dv if weight is None else dv * (xp.astype(weight, compute) + options.weight_offset)

    g_groups, x_groups = xp.reshape(g, _grouped(spec)), xp.reshape(x_hat, _grouped(spec))
    c = xp.mean(g_groups * x_groups)
    ds = xp.reshape(rstd * (g_groups - x_groups * c), spec.x.shape)

    dgate = None
    if spec.gate_first:
        dgate = _result(xp, ds * xp.astype(s, compute) * silu_grad(xp, z), spec.gate.dtype)  # type: ignore[union-attr]
        ds = ds * xp.silu(z)
    elif spec.gate_last:
        dgate = _result(xp, dy * _scale(xp, spec, x_hat, weight, bias) * silu_grad(xp, z), spec.gate.dtype)  # type: ignore[union-attr]
    if dsum is not None:
        ds = ds + xp.astype(dsum, compute)

    dx = _result(xp, ds, spec.x.dtype)
    dresidual = None if spec.residual is None else _result(xp, ds, spec.residual.dtype)
    dweight = None if spec.weight is None else _result(xp, xp.sum_to(dv * x_hat, spec.weight.shape), spec.weight.dtype)
    dbias = None if spec.bias is None else _result(xp, xp.sum_to(dv, spec.bias.shape), spec.bias.dtype)
    return dx, dresidual, dgate, dweight, dbias


def _result(xp: Namespace, array: Any, dtype: str) -> Any:
    return xp.dense(xp.astype(array, dtype))


def _grouped(spec: Spec) -> tuple[int, ...]:
    """The shape of x with its columns split into the groups that are normalised together."""
    groups = 1 if spec.options.group_size is None else spec.heads
    return (*spec.x.shape[:-1], groups, spec.N)


def _gate_input(xp: Namespace, spec: Spec, s: Any, gate: Any) -> Any:
    u = xp.astype(s, spec.compute_dtype)
    return u * xp.silu(xp.astype(gate, spec.compute_dtype)) if spec.gate_first else u


def _scale(xp: Namespace, spec: Spec, x_hat: Any, weight: Any, bias: Any) -> Any:
    v = x_hat if weight is None else x_hat * (xp.astype(weight, spec.compute_dtype) + spec.options.weight_offset)
    return v if bias is None else v + xp.astype(bias, spec.compute_dtype)
