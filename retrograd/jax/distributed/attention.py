"""Attention: each device gets all steps of some heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.jax.arguments import arrays_of, params_of
from retrograd.core.jax.context import Results
from retrograd.core.op import Op

from .borders import Borders

REFUSED = ("bias", "dropout_seed", "segment_ids")  # they are of all steps or heads


def attention(
    borders: Borders, op: Op, run: Callable[..., Results], arrays: dict[str, Any], options: dict[str, Any]
) -> Results:
    """`attention` over the steps of all devices: each computes all steps of some heads, as one device would.

    Every pair of a query and a key is computed once, and masks divide the work equally. Where there are fewer key heads
    than devices, several devices have the same ones, and the gradient of these is the sum of theirs.
    """
    given = arrays_of(op.name, arrays, required=3)
    for name in REFUSED:
        if given[name] is not None:
            raise bad_value(op.name, name, "given", "None beside a context")
    q, k, v, world = given["q"], given["k"], given["v"], borders.world
    for name, array in (("k", k), ("v", v)):
        if array.ndim != 4 or array.shape[1] != borders.time:
            raise bad_shape(op.name, name, array.shape, f"{borders.time} steps, as q: keys are those of the queries")
    op.spec(params_of(given), options)
    heads, groups = q.shape[2], k.shape[2]
    if heads % world:
        raise bad_value(op.name, "q's number of heads", heads, f"a multiple of {world}, the number of devices")
    if groups % world and world % groups:
        expected = f"a multiple of {world}, the number of devices, or a number that divides it"
        raise bad_value(op.name, "k's number of heads", groups, expected)
    if groups < world:
        k, v = (jnp.repeat(x, world // groups, axis=2) for x in (k, v))

    def of_all(x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x, borders.axis, split_axis=2, concat_axis=1, tiled=True)

    own = {**given, "q": of_all(q), "k": of_all(k), "v": of_all(v)}
    for name in ("alibi_slopes", "sinks"):
        if (of_heads := given[name]) is not None:
            size = of_heads.shape[-1] // world
            own[name] = jax.lax.dynamic_slice_in_dim(of_heads, borders.rank * size, size, -1)
    out, lse = run(own, options)
    out = jax.lax.all_to_all(out, borders.axis, split_axis=1, concat_axis=2, tiled=True)
    if lse is not None:
        lse = jax.lax.all_to_all(lse, borders.axis, split_axis=2, concat_axis=1, tiled=True)
    return out, lse
