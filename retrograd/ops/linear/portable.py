"""linear without a GPU kernel: one source for PyTorch and JAX, on CPU and TPU, forward and backward.

`xp` is a `retrograd.core.xp.Namespace`. Arguments, results and gradients are dicts by array name; see `op.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.xp import Namespace, aligned

from .op import Spec


def forward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """y."""
    y = xp.row_products(_rows(xp, spec, arrays["x"], spec.K), _wide(xp, spec, arrays["weight"]))
    if spec.bias:
        y = y + aligned(_wide(xp, spec, arrays["bias"]), y)
    return {"y": _result(xp, y, spec["y"])}


def backward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """The wanted gradients; the formulas are in README.md."""
    dy = _rows(xp, spec, arrays["dy"], spec.N)
    gradients = {}
    if "x" in wanted:
        gradients["dx"] = xp.row_products(dy, xp.moveaxis(_wide(xp, spec, arrays["weight"]), 0, 1))
    if "weight" in wanted:
        gradients["dweight"] = xp.matmul(xp.moveaxis(dy, 0, 1), _rows(xp, spec, arrays["x"], spec.K))
    if "bias" in wanted and spec.bias:
        gradients["dbias"] = xp.sum_to(dy, (spec.N,))
    return {name: _result(xp, gradients[name], param) for name, param in spec.params(spec.makes(wanted)).items()}


def _wide(xp: Namespace, spec: Spec, array: Any) -> Any:
    return xp.astype(array, spec.compute_dtype)


def _rows(xp: Namespace, spec: Spec, array: Any, columns: int) -> Any:
    return xp.reshape(_wide(xp, spec, array), (spec.rows, columns))


def _result(xp: Namespace, array: Any, param: Any) -> Any:
    return xp.dense(xp.reshape(xp.astype(array, param.dtype), param.shape))
