"""Embedding lookup, with a gradient whose sums have a fixed order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Float, Int

from retrograd.core.errors import bad_shape
from retrograd.core.jax.sharding import explicit, vary_alike
from retrograd.core.spec import known
from retrograd.jax import linear_scan

from .layers import at_least_float32


def embed(weight: Float[Array, "V d"], tokens: Int[Array, " *batch"]) -> Float[Array, "*batch d"]:
    """weight[tokens]; rows of NaN for a token outside of the table, since a jitted function cannot raise.

    JAX's own gradient is a scatter-add, which XLA compiles to atomic additions on a GPU. This one sorts the tokens and
    sums the rows of each with `linear_scan`, in at least float32. It supports reverse mode only.
    """
    if sharded := explicit(tokens):
        specs = (PartitionSpec(), sharded.spec)
        out: Array = jax.shard_map(embed, mesh=sharded.mesh, in_specs=specs, out_specs=sharded.spec)(weight, tokens)
        return out
    rows: Array = _embed(*vary_alike((weight, tokens)))
    return rows


@jax.custom_vjp
def _embed(weight: Array, tokens: Array) -> Array:
    rows: Array = jnp.asarray(weight).at[tokens].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    return rows


def _forward(weight: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return _embed(weight, tokens), (weight, tokens)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    weight, tokens = saved
    if not known(tokens.size):
        raise bad_shape("embed", "tokens", tokens.shape, "numbers, so that the tokens can be sorted for the gradient")
    if not tokens.size:
        return jnp.zeros_like(weight), None
    numbers = tokens.reshape(-1)
    order = jnp.argsort(numbers, stable=True)
    numbers = numbers[order]
    terms = at_least_float32(gradient.reshape(len(numbers), -1)[order])
    same = jnp.pad(numbers[1:] == numbers[:-1], (1, 0))  # equal to the token before: its sum continues
    sums = linear_scan(same[None, :, None].astype(terms.dtype), terms[None])[0]
    row = jnp.arange(weight.shape[0])
    last = jnp.searchsorted(numbers, row, side="right") - 1
    occurs = (last >= 0) & (numbers[last] == row)
    return jnp.where(occurs[:, None], sums[last], 0).astype(weight.dtype), None


_embed.defvjp(_forward, _backward)
