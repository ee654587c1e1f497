"""row_scale without a GPU kernel, for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.xp import Namespace

from .op import Spec


def forward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The result."""
    y = _wide(xp, spec, arrays["x"]) * _of_rows(xp, spec, arrays)
    return {"y": xp.dense(xp.astype(y, spec.x.dtype))}


def backward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """The wanted gradients."""
    dy = _wide(xp, spec, arrays["dy"])
    gradients = {
        "dx": dy * _of_rows(xp, spec, arrays),
        "dscale": xp.sum(dy * _wide(xp, spec, arrays["x"]), 1),
    }
    made = spec.params(spec.makes(wanted))
    return {name: xp.dense(xp.astype(gradients[name], param.dtype)) for name, param in made.items()}


def _wide(xp: Namespace, spec: Spec, array: Any) -> Any:
    return xp.astype(array, spec.compute_dtype)


def _of_rows(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> Any:
    """The scales, as a column."""
    return xp.reshape(_wide(xp, spec, arrays["scale"]), (*spec.scale.shape, 1))
