"""Attention for flax's `linen.MultiHeadDotProductAttention`; it needs no flax itself."""

from __future__ import annotations

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
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: None = None,
    qk_attn_weights_einsum: None = None,
    attn_weights_value_einsum: None = None,
) -> Array:
    """`flax.linen.dot_product_attention` on `retrograd.jax.attention`: pass it as `attention_fn` of a module.

    It differs from flax's as `retrograd.jax.nnx.attention_fn` does. linen has no causal option: its causal masks are
    passed as arrays.

    Args:
        query: as in `retrograd.jax.nnx.attention_fn`, and so are all arguments up to module.
        key: as there.
        value: as there.
        bias: as there.
        mask: as there.
        broadcast_dropout: as there.
        dropout_rng: as there.
        dropout_rate: as there.
        deterministic: as there.
        dtype: as there.
        precision: as there.
        module: as there.
        force_fp32_for_softmax: no effect: the softmax is always in float32.
        einsum_dot_general: refused: no product can be replaced.
        qk_attn_weights_einsum: refused likewise.
        attn_weights_value_einsum: refused likewise.

    Returns:
        (*batch, Tq, H, Dv).

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.

    Example:
        >>> import jax.numpy as jnp
        >>> from retrograd.jax.linen import attention_fn
        >>> q, mask = jnp.ones((2, 10, 4, 16)), jnp.tril(jnp.ones((10, 10)))
        >>> attention_fn(q, q, q, mask=mask[None, None]).shape
        (2, 10, 4, 16)
    """
    refused = {
        "module": module,
        "einsum_dot_general": einsum_dot_general,
        "qk_attn_weights_einsum": qk_attn_weights_einsum,
        "attn_weights_value_einsum": attn_weights_value_einsum,
    }
    for name, given in refused.items():
        if given is not None:
            raise NotImplementedError(f"{NAME}: {name} is not supported")
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
    )
