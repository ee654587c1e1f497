"""`attention` of queries, keys and values in one array."""

from __future__ import annotations

from typing import Any, Literal

from jax import Array

from retrograd.core.errors import as_tuple
from retrograd.core.jax.arguments import as_array
from retrograd.core.jax.checks import checker
from retrograd.core.jax.op import bind

from .op import OP
from .packed import STACK, Packed

_attention = bind(OP)
_check = checker(Packed, rows=True)


def attention_qkvpacked(
    qkv: Array,
    *,
    bias: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    dropout_seed: int | Array | None = None,
    cu_seqlens: Array | None = None,
    segment_ids: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
    backward: Literal["auto", "split", "fused"] = "auto",
) -> Array | tuple[Array, Array]:
    """`attention` of queries, keys and values that a projection left in one array, without a copy of them.

    Args:
        qkv: (B, T, 3, H, D): queries, keys and values. Its gradient is one array, too, which XLA puts together from
            three, perhaps by a copy.
        bias: as in `attention`.
        alibi_slopes: as in `attention`.
        sinks: as in `attention`.
        dropout_seed: as in `attention`.
        cu_seqlens: (S + 1,) int32: the boundaries of queries and keys.
        segment_ids: as in `attention`.
        causal: as in `attention`.
        window: as in `attention`.
        scale: as in `attention`.
        softcap: as in `attention`.
        dropout_p: as in `attention`.
        return_lse: as in `attention`.
        backward: as in `attention`.

    Returns:
        out (B, T, H, D); with `return_lse`, (out, lse).

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from retrograd.jax import attention_qkvpacked
        >>> dqkv = jax.grad(lambda qkv: attention_qkvpacked(qkv, causal=True).sum())(jnp.ones((2, 100, 3, 8, 64)))
        >>> dqkv.shape
        (2, 100, 3, 8, 64)
    """
    arrays: dict[str, Any] = {
        "qkv": qkv,
        "bias": bias,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "dropout_seed": as_array(Packed.op, "dropout_seed", dropout_seed, "int32", qkv),
        "cu_seqlens": cu_seqlens,
        "segment_ids": segment_ids,
    }
    options: dict[str, Any] = {
        "causal": causal,
        "window": as_tuple(window),
        "scale": scale,
        "softcap": softcap,
        "dropout_p": dropout_p,
        "return_lse": return_lse,
        "backward": backward,
    }
    arrays, _ = _check(arrays, options)
    whole, bounds = arrays.pop("qkv"), arrays.pop("cu_seqlens")
    q, k, v = (whole[:, :, place] for place in range(len(STACK.arguments)))
    bounds_of = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
    out, lse = _attention(*OP.complete({"q": q, "k": k, "v": v, **arrays, **bounds_of, **options}))
    return (out, lse) if return_lse else out
