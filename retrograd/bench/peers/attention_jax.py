"""Peers of attention in JAX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from retrograd.core.cases import Case

from . import Function, NotApplicableError, Peer, check_takes, load
from .attention import ARRAYS

TILE = 128  # steps of a tile of Pallas' kernel, which takes whole tiles only


def jax_nn(case: Case, implementation: str) -> Function:
    """jax.nn.dot_product_attention with one of its implementations."""
    check_takes(case, ARRAYS | {"bias"}, frozenset({"causal", "window", "scale"}))
    q, k = (case.inputs[name].shape for name in "qk")
    if q[1] != k[1] and (case.options.get("causal") or case.options.get("window")):
        raise NotApplicableError("its masks are aligned with the first key")
    if implementation == "xla" and q[0] * q[2] * q[1] * k[1] > 2**33:
        raise NotApplicableError("its scores do not fit in memory")
    left, right = case.options.get("window") or (-1, -1)
    window = None if left == right == -1 else (left if left >= 0 else k[1], right if right >= 0 else k[1])

    def call(inputs: Mapping[str, jax.Array]) -> jax.Array:
        attention: Any = jax.nn.dot_product_attention
        out: jax.Array = attention(
            *(inputs[name] for name in "qkv"),
            bias=inputs.get("bias"),
            is_causal=bool(case.options.get("causal")),
            local_window_size=window,
            scale=case.options.get("scale"),
            implementation=implementation,
        )
        return out

    return call


def pallas(case: Case) -> Function:
    """The Pallas kernel that jax has for GPUs."""
    check_takes(case, ARRAYS, frozenset({"causal", "scale"}))
    q, k = (case.inputs[name].shape for name in "qk")
    if q != k or q[1] % TILE:
        raise NotApplicableError(f"it takes one shape of q and k, and steps in multiples of {TILE}")
    attention = load("jax.experimental.pallas.ops.gpu.attention", "mha")
    scale = case.options.get("scale") or q[3] ** -0.5

    def call(inputs: Mapping[str, jax.Array]) -> jax.Array:
        out: jax.Array = attention(
            *(inputs[name] for name in "qkv"),
            segment_ids=None,
            sm_scale=scale,
            causal=bool(case.options.get("causal")),
        )
        return out

    return call


PEERS = (
    Peer("cudnn", partial(jax_nn, implementation="cudnn"), "jax"),
    Peer("xla", partial(jax_nn, implementation="xla"), "jax"),
    Peer("pallas_mha", pallas, "jax"),
)
