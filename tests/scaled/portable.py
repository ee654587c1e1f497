from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrograd.core.xp import Namespace

from .op import Spec


def forward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any]) -> dict[str, Any]:
    scale, seed = arrays.get("scale"), arrays.get("seed")
    y = arrays["x"] if scale is None else arrays["x"] * scale
    return {"y": y + 1 if seed is None else y + xp.astype(seed, "float32") + 1}


def backward(xp: Namespace, spec: Spec, arrays: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    scale = arrays.get("scale")
    return {"dx": arrays["dy"] * 1 if scale is None else arrays["dy"] * scale}
