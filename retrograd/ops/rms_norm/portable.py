"""RMSNorm without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

`xp` is a `retrograd.core.xp.Namespace`. Arguments, results and gradients are dicts by array name; see `op.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.xp import Namespace, aligned, sigmoid_grad, silu_grad

from .op import Spec


def forward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """y, rstd and, with a residual, sum."""
    compute, gate = spec.compute_dtype, arrays.get("gate")
    s, results = arrays["x"], {}
    if spec.residual:
        s = results["sum"] = _result(xp, xp.astype(s, compute) + xp.astype(arrays["residual"], compute), spec.sum_dtype)
    groups = xp.reshape(_gate_input(xp, spec, s, gate), _grouped(spec))
    rstd = _rstd(xp, spec, groups)
    y = _scale(xp, spec, xp.reshape(groups * rstd, spec.x.shape), arrays)
    if spec.gate_last:
        y = y * _act(xp, spec, xp.astype(gate, compute))
    return {**results, "y": _result(xp, y, spec.y_dtype), "rstd": xp.reshape(rstd, _rstd_shape(spec))}


def backward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """The gradient of each present argument; the formulas are in README.md."""
    compute = spec.compute_dtype
    gate, s = arrays.get("gate"), arrays[spec.normalised]
    rstd = xp.reshape(arrays["rstd"], (*_rstd_shape(spec), 1))
    x_hat = xp.reshape(xp.reshape(_gate_input(xp, spec, s, gate), _grouped(spec)) * rstd, spec.x.shape)
    z = None if gate is None else xp.astype(gate, compute)
    dy = xp.astype(arrays["dy"], compute)
    dv = dy * _act(xp, spec, z) if spec.gate_last else dy
    g = _weighted(xp, spec, dv, arrays)

    g_groups, x_groups = xp.reshape(g, _grouped(spec)), xp.reshape(x_hat, _grouped(spec))
    c = xp.mean(g_groups * x_groups)
    ds = xp.reshape(rstd * (g_groups - x_groups * c), spec.x.shape)

    gradients = {}
    if spec.gate_first:
        gradients["dgate"] = ds * xp.astype(s, compute) * _act_grad(xp, spec, z)
        ds = ds * _act(xp, spec, z)
    elif spec.gate_last:
        gradients["dgate"] = dy * _scale(xp, spec, x_hat, arrays) * _act_grad(xp, spec, z)
    if "dsum" in spec.gradients_in():
        ds = ds + xp.astype(arrays["dsum"], compute)
    gradients["dx"] = gradients["dresidual"] = ds
    if spec.weight:
        gradients["dweight"] = xp.sum_to(dv * x_hat, spec.weight.shape)
    if spec.bias:
        gradients["dbias"] = xp.sum_to(dv, spec.bias.shape)
    return {name: _result(xp, gradients[name], param.dtype) for name, param in spec.params(gradients).items()}


def recomputed(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """rstd, computed again from the normalised array and the gate."""
    s = arrays[spec.normalised]
    groups = xp.reshape(_gate_input(xp, spec, s, arrays.get("gate")), _grouped(spec))
    return {"rstd": xp.reshape(_rstd(xp, spec, groups), _rstd_shape(spec))}


def _rstd_shape(spec: Spec) -> tuple[int, ...]:
    return (*spec.x.shape[:-1], spec.groups)


def _rstd(xp: Namespace, spec: Spec, groups: Any) -> Any:
    return 1 / xp.sqrt(xp.mean(groups * groups) + spec.eps)


def _result(xp: Namespace, array: Any, dtype: str) -> Any:
    return xp.dense(xp.astype(array, dtype))


def _grouped(spec: Spec) -> tuple[int, ...]:
    """The shape of x with its columns split into the groups that are normalised together."""
    return (*_rstd_shape(spec), spec.N)


def _gate_input(xp: Namespace, spec: Spec, s: Any, gate: Any) -> Any:
    u = xp.astype(s, spec.compute_dtype)
    return u * _act(xp, spec, xp.astype(gate, spec.compute_dtype)) if spec.gate_first else u


def _act(xp: Namespace, spec: Spec, z: Any) -> Any:
    return xp.sigmoid(z) if spec.sigmoid else xp.silu(z)


def _act_grad(xp: Namespace, spec: Spec, z: Any) -> Any:
    return sigmoid_grad(xp, z) if spec.sigmoid else silu_grad(xp, z)


def _scale(xp: Namespace, spec: Spec, x_hat: Any, arrays: Mapping[str, Any]) -> Any:
    bias, v = arrays.get("bias"), _weighted(xp, spec, x_hat, arrays)
    return v if bias is None else v + aligned(xp.astype(bias, spec.compute_dtype), v)


def _weighted(xp: Namespace, spec: Spec, rows: Any, arrays: Mapping[str, Any]) -> Any:
    weight = arrays.get("weight")
    return rows if weight is None else rows * aligned(xp.astype(weight, spec.compute_dtype) + spec.weight_offset, rows)
