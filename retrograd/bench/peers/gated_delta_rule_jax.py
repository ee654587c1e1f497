"""Peers of gated_delta_rule in JAX."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from retrograd.opinfo.cases import Case

from . import Function, Peer, check_takes, load
from .gated_delta_rule import ARGUMENTS


def jla(case: Case) -> Function:
    """jax-linear-attention's Mosaic GPU kernels, without its fallback for unsupported calls.

    It takes packed sequences as the number of each step's sequence, which is computed in the same jitted function.
    """
    check_takes(case, ARGUMENTS, frozenset({"normalize_qk"}))
    attention = load("jla.ops", "linear_attention")
    kind = "kda" if len(case.inputs["g"].shape) == 4 else "gated_deltanet"
    settings = {"use_qk_l2norm": bool(case.options.get("normalize_qk")), "impl": "mosaic_gpu"}

    def rule(inputs: Mapping[str, jax.Array]) -> jax.Array:
        given = {name: x for name, x in inputs.items() if name != "cu_seqlens"}
        if "cu_seqlens" in inputs:
            steps = jnp.arange(inputs["q"].shape[1], dtype=jnp.int32)
            given["segment_ids"] = jnp.searchsorted(inputs["cu_seqlens"], steps, side="right")[None].astype(jnp.int32)
        o: jax.Array = attention(kind, **given, **settings)[0]
        return o

    return rule


PEERS = (Peer("jla", jla, "jax-linear-attention"),)
