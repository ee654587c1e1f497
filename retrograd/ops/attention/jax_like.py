"""`jax.nn.dot_product_attention`'s call on `attention`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from retrograd.core.errors import bad_dtype, bad_shape, bad_value
from retrograd.core.jax.arguments import arrays_of

NAME = "dot_product_attention"


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """`jax.nn.dot_product_attention` with the same arguments, computed by `retrograd.jax.attention`.

    What differs: a query that sees no key has zeros as its result, where jax returns the mean of all values; the
    residual is in float32 and has a gradient. As in jax, and unlike in `attention`, query i stands at key i: causal
    masks and windows begin at the first query and key.

    Args:
        query: (B, T, N, H) or (T, N, H), float32, bfloat16 or float16.
        key: (B, S, K, H) or (S, K, H) in the dtype of query; K divides N.
        value: like key, also with another H.
        bias: (B, N, T, S), each axis also of size 1, like query or float32; added to the scaled products.
        mask: of bool, like bias: True where a query sees a key.
        scale: factor of the products; 1 / sqrt(H) by default.
        is_causal: whether a query sees no later key.
        query_seq_lengths: (B,) int32: queries from there on have zeros as their results.
        key_value_seq_lengths: (B,) int32: keys from there on are not seen.
        local_window_size: (left, right), how many keys a query sees before and behind its own place; an int for both.
        implementation: None, since there is one.
        return_residual: also return the logarithm of the sum of exponentials, (B, T, N) or (T, N).

    Returns:
        The result, of the shape of query with the H of value; with `return_residual`, also the residual.

    Raises:
        ValueError, TypeError: before any launch; the text names the argument, its value and what was expected.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax import dot_product_attention
        >>> q, k = jnp.ones((2, 10, 4, 16)), jnp.ones((2, 10, 2, 16))
        >>> dot_product_attention(q, k, k, is_causal=True).shape
        (2, 10, 4, 16)
    """
    if implementation is not None:
        raise bad_value(NAME, "implementation", implementation, "None")
    from retrograd.ops.jax_functions import attention  # which has this function, too

    arrays = arrays_of(NAME, {"query": query, "key": key, "value": value, "bias": bias, "mask": mask}, 3)
    single = arrays["query"].ndim == 3
    for name in ("query", "key", "value"):
        if arrays[name].ndim != 4 - single:
            raise bad_shape(NAME, name, arrays[name].shape, "(batch, steps, heads, size), or all without batch")
    q, k, v = (arrays[name][None] if single else arrays[name] for name in ("query", "key", "value"))
    steps, keys = q.shape[1], k.shape[1]
    left, right = _sides(local_window_size)
    visible = _of_heads("mask", arrays["mask"])
    if key_value_seq_lengths is not None:
        real = jnp.arange(keys) < _lengths("key_value_seq_lengths", key_value_seq_lengths, q)[:, None, None, None]
        visible = real if visible is None else visible & real
    causal, window = is_causal, None if local_window_size is None else (left, right)
    if steps != keys and (causal or window):  # `attention` aligns the last query with the last key
        behind = jnp.arange(keys)[None, :] - jnp.arange(steps)[:, None]
        own = (behind <= (0 if causal else right)) & (behind >= (-keys - steps if window is None else -left))
        visible = own[None, None] if visible is None else visible & own
        causal, window = False, None
    added = _of_heads("bias", arrays["bias"])
    if visible is not None:
        if visible.dtype != jnp.bool_:
            raise bad_dtype(NAME, "mask", str(visible.dtype), ("bool",))
        added = jnp.where(visible, jnp.float32(0) if added is None else added, -jnp.inf)
    out, lse = attention(q, k, v, bias=added, causal=causal, window=window, scale=scale, return_lse=True)
    if query_seq_lengths is not None:
        real = jnp.arange(steps) < _lengths("query_seq_lengths", query_seq_lengths, q)[:, None]
        out = jnp.where(real[:, :, None, None], out, 0)
        lse = jnp.where(real[:, None], lse, -jnp.inf)
    residual = jnp.moveaxis(lse, 1, 2)
    if single:
        out, residual = out[0], residual[0]
    return (out, residual) if return_residual else out


def _sides(window: int | tuple[int, int] | None) -> tuple[int, int]:
    """How many keys a query sees before and behind its place."""
    left, right = (0, 0) if window is None else (window, window) if isinstance(window, int) else window
    if min(left, right) < 0:
        raise bad_value(NAME, "local_window_size", window, "numbers that are not negative")
    return left, right


def _of_heads(name: str, array: Array | None) -> Array | None:
    """An array over pairs, (B, N, T, S) or (N, T, S), with an axis of rows."""
    if array is None or array.ndim == 4:
        return array
    if array.ndim != 3:
        raise bad_shape(NAME, name, array.shape, "(batch, heads, queries, keys), each also 1, or without batch")
    return array[None]


def _lengths(name: str, lengths: Any, q: Array) -> Array:
    """The lengths of all rows."""
    array = jnp.asarray(lengths)
    if array.shape != q.shape[:1]:
        raise bad_shape(NAME, name, array.shape, f"(batch={q.shape[0]},)")
    return array
