"""JAX's functions for portable paths."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..xp import Namespace, rows_of
from .pair import Pair
from .sharding import vary_over, varying


@cache
def jax_namespace() -> Namespace:
    """JAX's functions."""
    return Namespace(
        astype=lambda x, dtype: x.astype(dtype),
        reshape=jnp.reshape,
        dense=lambda x: x,
        mean=lambda x: jnp.mean(x, axis=-1, keepdims=True),
        sqrt=jnp.sqrt,
        silu=jax.nn.silu,
        sigmoid=jax.nn.sigmoid,
        sum_to=lambda x, shape: x.reshape(rows_of(x.shape, shape), *shape).sum(0),
        sum=lambda x, axis: jnp.sum(x, axis=axis),
        arange=lambda like, size: jnp.arange(size, dtype=jnp.int32),  # int64 where jax_enable_x64 is set
        clip=jnp.clip,
        cumsum=lambda x, axis, reverse: jax.lax.cumsum(x, axis % x.ndim, reverse=reverse),
        matmul=lambda a, b: jnp.matmul(a, b, precision="highest"),
        row_products=lambda a, b: jnp.matmul(a, b.mT, precision="highest"),
        exp=jnp.exp,
        log=jnp.log,
        tanh=jnp.tanh,
        abs=jnp.abs,
        max=lambda x: jnp.max(x, axis=-1, keepdims=True),
        maximum=jnp.maximum,
        word=lambda x: x.astype("uint32"),
        mul_wide=_mul_wide,
        add_word=lambda x, n: x + jnp.uint32(n),
        softplus=jax.nn.softplus,
        where=jnp.where,
        multiply=_multiply,
        conj=jnp.conj,
        complex=jax.lax.complex,
        wide=lambda x: Pair(x, jnp.zeros_like(x)),
        narrow=_narrow,
        moveaxis=jnp.moveaxis,
        broadcast_to=jnp.broadcast_to,
        concat=lambda xs, axis: jnp.concatenate(list(xs), axis),
        stack=lambda xs, axis: jnp.stack(list(xs), axis),
        zeros=lambda like, shape, dtype: vary_over(varying(like), jnp.zeros(shape, dtype)),
        scan=lambda step, carry, xs, reverse: jax.lax.scan(step, carry, xs, reverse=reverse),
        recurrence=_recurrence,
    )


def _multiply(x: Any, y: Any) -> Any:
    """The product, with a cast of a real factor to complex, which JAX can be told to refuse to add itself."""
    dtype = np.result_type(x.dtype, y.dtype)
    return x.astype(dtype) * y.astype(dtype)


def _mul_wide(x: Any, n: int) -> tuple[Any, Any]:
    """JAX has no integers of 64 bits by default: products of 16 bits by 16."""
    high, low = jnp.uint32(n >> 16), jnp.uint32(n & 0xFFFF)
    x_high, x_low = x >> 16, x & 0xFFFF
    lowest = x_low * low
    middle = x_high * low + (lowest >> 16)  # below 2^32
    other = x_low * high + (middle & 0xFFFF)
    return x_high * high + (middle >> 16) + (other >> 16), x * jnp.uint32(n)


def _narrow(wide: Any, dtype: str) -> tuple[Any, Any]:
    return wide.high, jnp.where(jnp.isfinite(wide.high), wide.low, 0)


def _recurrence(decay: Any, added: Any, h: Any, reverse: bool) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = x[0] * h + x[1]
        return h, h

    _, states = jax.lax.scan(step, h, (decay, added), reverse=reverse)
    return jnp.concatenate([states, h[None]] if reverse else [h[None], states])
