"""The op as a function, before it has a public one, and its record with that function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from retrograd.core.torch.op import bind_unregistered
from retrograd.ops.gated_delta_rule import info
from retrograd.ops.gated_delta_rule.op import OP

CALL = bind_unregistered(OP)
OPTIONS = {"scale": None, "return_final_state": False, "normalize_qk": False}


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **options: Any,
) -> Any:
    arrays = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state, "cu_seqlens": cu_seqlens}
    o, final_state = CALL(arrays, OPTIONS | options)
    return (o, final_state) if options.get("return_final_state") else o


INFO = replace(info.INFO, torch=gated_delta_rule)
