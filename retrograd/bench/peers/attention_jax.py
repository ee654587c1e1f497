"""Peers of attention in JAX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from retrograd.opinfo.cases import Case

from . import Function, NotApplicableError, Peer, check_takes, load
from .attention import ARRAYS

TILE = 128  # steps of a tile of Pallas' kernel, which takes whole tiles only


def local_window(case: Case) -> tuple[int, int] | None:
    """The case's window as `local_window_size` of jax.nn and of tokamax, whose masks are aligned with the first key."""
    queries, keys = (case.inputs[name].shape[1] for name in "qk")
    if queries != keys and (case.options.get("causal") or case.options.get("window")):
        raise NotApplicableError("its masks are aligned with the first key")
    left, right = case.options.get("window") or (-1, -1)
    return None if left == right == -1 else (left if left >= 0 else keys, right if right >= 0 else keys)


def jax_nn(case: Case, implementation: str) -> Function:
    """jax.nn.dot_product_attention with one of its implementations."""
    check_takes(case, ARRAYS | {"bias"}, frozenset({"causal", "window", "scale"}))
    window = local_window(case)
    q, k = (case.inputs[name].shape for name in "qk")
    if implementation == "xla" and q[0] * q[2] * q[1] * k[1] > 2**33:
        raise NotApplicableError("its scores do not fit in memory")

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


def tokamax(case: Case) -> Function:
    """tokamax's Mosaic GPU kernels, with the tiles that it chooses itself without tuning."""
    check_takes(case, ARRAYS | {"bias"}, frozenset({"causal", "window", "scale", "softcap"}))
    window = local_window(case)
    attention = load("tokamax", "dot_product_attention")

    def call(inputs: Mapping[str, jax.Array]) -> jax.Array:
        out: jax.Array = attention(
            *(inputs[name] for name in "qkv"),
            bias=inputs.get("bias"),
            is_causal=bool(case.options.get("causal")),
            local_window_size=window,
            scale=case.options.get("scale"),
            logits_soft_cap=case.options.get("softcap"),
            implementation="mosaic",
        )
        return out

    return call


def jla(case: Case, backward: str) -> Function:
    """jax-linear-attention's Mosaic GPU kernels for causal attention; packed sequences by ids of their steps.

    The ids are computed in the same jitted function, and are part of its time. The backward pass "ranged" has one
    kernel for dq and one for dk and dv; "fused" has one kernel for all, which adds up dq in any order.
    """
    packed = frozenset({"cu_seqlens_q", "cu_seqlens_k"})
    check_takes(case, ARRAYS | {"sinks"} | packed, frozenset({"causal", "window", "scale"}))
    left, right = case.options.get("window") or (-1, -1)
    if not case.options.get("causal") and right != 0:
        raise NotApplicableError("it is always causal")
    q, k, v = (case.inputs[name] for name in "qkv")
    if packed <= case.inputs.keys():
        queries, keys = (case.inputs[f"cu_seqlens_{side}"].values or () for side in "qk")
        if queries != keys or (queries[0], queries[-1]) != (0, q.shape[1]):
            raise NotApplicableError("its packed sequences fill all steps, those of q as those of k")
    if backward == "fused" and q.shape[3] != v.shape[3]:
        raise NotApplicableError("its fused backward pass takes one width of q, k and v")
    module = "jla.ops.mosaic_gpu.attention"
    attention, supported = (load(module, name) for name in ("flash_attention", "supported"))
    reason = supported(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)))
    if reason is not None:
        raise NotApplicableError(reason)

    def call(inputs: Mapping[str, jax.Array]) -> jax.Array:
        ids = None
        if "cu_seqlens_q" in inputs:
            steps = jnp.arange(q.shape[1], dtype=jnp.int32)
            ids = jnp.searchsorted(inputs["cu_seqlens_q"], steps, side="right").astype(jnp.int32)[None]
        out: jax.Array = attention(
            *(inputs[name] for name in "qkv"),
            segment_ids=ids,
            sliding_window=left + 1 if left >= 0 else None,
            scale=case.options.get("scale"),
            backward=backward,
            sinks=inputs.get("sinks"),
        )
        return out

    return call


PEERS = (
    Peer("cudnn", partial(jax_nn, implementation="cudnn"), "jax"),
    Peer("xla", partial(jax_nn, implementation="xla"), "jax"),
    Peer("pallas_mha", pallas, "jax"),
    Peer("jla", partial(jla, backward="ranged"), "jax-linear-attention"),
    Peer("jla_fused", partial(jla, backward="fused"), "jax-linear-attention"),
    Peer("tokamax", tokamax, "tokamax"),
)
