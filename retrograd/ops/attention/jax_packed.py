"""`attention` of queries, keys and values in one array."""

from __future__ import annotations

from typing import Any, Literal

import jax
from jax import Array

from retrograd.core.errors import bad_shape, bad_type

NAME = "attention_qkvpacked"


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
    from retrograd.ops.jax_functions import attention  # which has this function, too

    if not isinstance(qkv, jax.Array):
        raise bad_type(NAME, "qkv", qkv, "a jax.Array")
    if qkv.ndim != 5 or qkv.shape[2] != 3:
        raise bad_shape(NAME, "qkv", qkv.shape, "(batch, steps, 3, heads, head size)")
    q, k, v = (qkv[:, :, i] for i in range(3))
    options: dict[str, Any] = {
        "bias": bias,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "dropout_seed": dropout_seed,
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_k": cu_seqlens,
        "segment_ids": segment_ids,
        "causal": causal,
        "window": window,
        "scale": scale,
        "softcap": softcap,
        "dropout_p": dropout_p,
        "return_lse": return_lse,
        "backward": backward,
    }
    results: Array | tuple[Array, Array] = attention(q, k, v, **options)
    return results
