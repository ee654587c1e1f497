"""row_butterfly without a GPU kernel, for PyTorch and JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.xp import Namespace

from .op import Spec


def forward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The results."""
    x, half = _wide(xp, spec, arrays["x"]), _wide(xp, spec, arrays["half"])
    half = xp.reshape(half, (*spec.half.shape, 1))
    return {
        name: xp.dense(xp.astype(result, spec.x.dtype)) for name, result in (("above", x + half), ("below", x - half))
    }


def backward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """The wanted gradients."""
    dabove, dbelow = _wide(xp, spec, arrays["dabove"]), _wide(xp, spec, arrays["dbelow"])
    gradients = {"dx": dabove + dbelow, "dhalf": xp.sum(dabove - dbelow, 1)}
    made = spec.params(spec.makes(wanted))
    return {name: xp.dense(xp.astype(gradients[name], param.dtype)) for name, param in made.items()}


def _wide(xp: Namespace, spec: Spec, array: Any) -> Any:
    return xp.astype(array, spec.compute_dtype)
