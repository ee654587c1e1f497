"""Rotary embedding of positions: pairs of a head's channels turned by angles that grow with the position."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int32

from retrograd.models.layers import AttentionConfig

from .layers import at_least_float32, split


def rotated(
    x: Float[Array, "B T H D"], position: Int32[Array, "#B T"], config: AttentionConfig
) -> Float[Array, "B T H D"]:
    """x with its first rotary_emb_dim channels turned, in at least float32.

    Pair i is turned by position * base^(-2 i / rotary_emb_dim): channels 2i and 2i + 1 if interleaved, else the i-th
    ones of both halves.

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), section 3.2.
    """
    size = config.rotary_emb_dim
    if not size:
        return x
    pairs = np.arange(size // 2)
    # float64 until here: at late positions an angle has the rounding error of its frequency many times over.
    frequency = (config.rotary_emb_base ** (-2 * pairs / size)).astype(np.float32)
    angle = position[..., None, None].astype(jnp.float32) * frequency[None, None, None]
    turned, rest = split(x, size, x.shape[-1] - size)
    wide = at_least_float32(turned)
    axis, halves = (-1, (len(pairs), 2)) if config.rotary_emb_interleaved else (-2, (2, len(pairs)))
    a, b = jnp.unstack(wide.reshape(*x.shape[:-1], *halves), axis=axis)
    cos, sin = (f(angle).astype(wide.dtype) for f in (jnp.cos, jnp.sin))
    wide = jnp.stack((a * cos - b * sin, a * sin + b * cos), axis=axis).reshape(turned.shape)
    return jnp.concatenate((wide.astype(x.dtype), rest), axis=-1)
