"""Attention for flax's `nnx.MultiHeadAttention`; it needs no flax itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array

from .flax_attention import NAME, attend

__all__ = ["attention_fn"]


def attention_fn(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: None = None,
    promote_dtype: Callable[..., Any] | None = None,
    is_causal: bool = False,
) -> Array:
    """`flax.nnx.dot_product_attention` on `retrograd.jax.attention`: pass it as `attention_fn` of a module.

    On a GPU nothing of the size of the scores is kept but a mask or a bias that is passed in; `is_causal` needs none.
    What differs: a query that sees no key has zeros as its result, where flax has the mean of all values; dropout drops
    each probability by itself, in steps of 2^-16 of the rate.

    Args:
        query: (*batch, Tq, H, D), float32, bfloat16 or float16; float64 runs on the portable path.
        key: (*batch, Tk, G, D); G divides H.
        value: (*batch, Tk, G, Dv).
        bias: added to the scaled products; it broadcasts to (*batch, H, Tq, Tk), and has a gradient.
        mask: of any dtype, with a shape as bias: not 0 where a query sees a key.
        broadcast_dropout: no effect: no probabilities are dropped in all rows and heads together.
        dropout_rng: a key of `jax.random`; the same key drops the same probabilities.
        dropout_rate: share of the probabilities that are dropped.
        deterministic: whether none is.
        dtype: of the computation and of the result; by default the widest of the three.
        precision: no effect: products of float32 are exact to float32.
        module: None. flax passes the module for `sow_weights=True`; there are no weights to keep.
        promote_dtype: called with the three arrays in a tuple and `dtype`, returns them as one dtype; by default they
            are promoted as JAX does.
        is_causal: whether query i sees no key after key i.

    Returns:
        (*batch, Tq, H, Dv).

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax.nnx import attention_fn
        >>> q, k = jnp.ones((2, 10, 4, 16)), jnp.ones((2, 10, 2, 16))
        >>> attention_fn(q, k, k, is_causal=True).shape  # nnx.MultiHeadAttention(..., attention_fn=attention_fn)
        (2, 10, 4, 16)
    """
    if module is not None:
        raise NotImplementedError(f"{NAME}: module is not supported: sow_weights=True keeps weights that are not made")
    if promote_dtype is not None:
        query, key, value = promote_dtype((query, key, value), dtype=dtype)
    return attend(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        is_causal=is_causal,
    )
