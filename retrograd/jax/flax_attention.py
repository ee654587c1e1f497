"""What flax's modules ask of an attention function, on `retrograd.jax.attention`; it needs no flax."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.ops.jax_functions import attention

NAME = "attention_fn"


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    bias: Array | None,
    mask: Array | None,
    dropout_rng: Array | None,
    dropout_rate: float,
    deterministic: bool,
    dtype: Any,
    is_causal: bool = False,
) -> Array:
    """Attention of (..., T, H, D) in the dtype of all three or the given one; arguments as in `nnx.attention_fn`."""
    dtype = jnp.result_type(query, key, value) if dtype is None else jnp.dtype(dtype)
    batch = query.shape[:-3]
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim < 3 or array.shape[:-3] != batch:
            raise bad_shape(NAME, name, array.shape, f"(*batch, length, heads, size), batch = {batch}")
    q, k, v = (_one_batch(array.astype(dtype), batch, 3) for array in (query, key, value))
    causal = is_causal and q.shape[1] == k.shape[1]
    scores = (q.shape[2], q.shape[1], k.shape[1])
    masks = [] if mask is None else [_one_batch(_broadcasting("mask", mask, batch, scores).astype(bool), batch, 3)]
    if is_causal and not causal:  # query i stands at key i; `attention` aligns the last query with the last key
        masks.append(jnp.tril(jnp.ones((1, 1, q.shape[1], k.shape[1]), bool)))
    if bias is not None:
        bias = _of_scores(_broadcasting("bias", bias, batch, scores), q)
    added = None if bias is None else _one_batch(bias, batch, 3)
    for each in masks:
        added = jnp.where(each, jnp.zeros((), q.dtype) if added is None else added, -jnp.inf)
    out = attention(q, k, v, bias=added, causal=causal, **_dropout(dropout_rng, dropout_rate, deterministic))
    return out.reshape(*batch, *out.shape[1:])


def _one_batch(array: Array, batch: tuple[int, ...], kept: int) -> Array:
    """An array with the axes of the batch as one: of size 1 where all of them are, or are absent."""
    array = array[(None,) * (kept - array.ndim)]
    own, rest = array.shape[: array.ndim - kept], array.shape[array.ndim - kept :]
    if len(own) > len(batch):
        raise bad_shape(NAME, "mask or bias", array.shape, f"at most {len(batch) + kept} axes")
    if math.prod(own) == 1:
        return array.reshape(1, *rest) if batch != (1,) or len(own) != 1 else array
    return jnp.broadcast_to(array, (*batch, *rest)).reshape(math.prod(batch), *rest)


def _broadcasting(name: str, array: Any, batch: tuple[int, ...], scores: tuple[int, int, int]) -> Array:
    """The array, if it broadcasts to the scores of all heads."""
    if not isinstance(array, Array | np.ndarray):
        raise bad_type(NAME, name, array, "an array")
    full = (*batch, *scores)
    if array.ndim > len(full) or any(n not in (1, m) for n, m in zip(array.shape[::-1], full[::-1], strict=False)):
        raise bad_shape(NAME, name, array.shape, f"(*batch, heads, queries, keys) = {full}, each also 1")
    return jnp.asarray(array)


def _of_scores(bias: Array, q: Array) -> Array:
    """A bias in a dtype that attention adds: that of q, or float32."""
    return bias if bias.dtype == q.dtype else bias.astype(jnp.promote_types(q.dtype, jnp.float32))


def _dropout(rng: Array | None, rate: float, deterministic: bool) -> dict[str, Any]:
    """The options of attention's dropout: its seed is drawn from the rng."""
    if deterministic or not rate:
        return {}
    if rng is None:
        raise bad_value(NAME, "dropout_rng", None, f"a key of jax.random, since dropout_rate is {rate}")
    seed = jax.lax.bitcast_convert_type(jax.random.bits(rng, (), "uint32"), jnp.int32)
    return {"dropout_p": rate, "dropout_seed": seed}
