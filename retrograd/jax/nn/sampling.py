"""Draws tokens from logits, each row by a seed of its own: what it draws does not depend on the other rows.

Sums over the vocabulary are sums of integers, since XLA orders those of floats anew for every shape.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Int32, UInt32

from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.core.jax.arguments import readable
from retrograd.models.generation import SamplingOptions

MOST_SEEDS = 2**32
UNIT = 2**31  # of which the shares of a row's tokens are whole parts
NO_TOKEN = -1


class Sampling(SamplingOptions):
    """How a token is drawn from logits."""

    __slots__ = ()

    def scaled(self, logits: Float[Array, "*batch V"]) -> Float[Array, "*batch V"]:
        """Logits over the temperature, less the largest of a row, in float32."""
        logits = logits.astype(jnp.float32)
        below = logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))
        # A product has the same bits in every kernel, a quotient may not have; its factor is a normal number, so that
        # neither 0 nor -inf becomes NaN.
        limits = jnp.finfo(jnp.float32)
        return below * min(max(1 / self.temperature, float(limits.tiny)), float(limits.max))

    def log_probabilities(
        self, logits: Float[Array, "*batch V"], tokens: Int[Array, " *batch"]
    ) -> Float[Array, " *batch"]:
        """Of a token for each row, among all tokens: without top_k and top_p. With temperature 0 they are 0.

        A row has the same bits among any others. NaN for a token outside of the vocabulary.
        """
        if self.temperature == 0:
            return jnp.zeros(tokens.shape, jnp.float32)
        scaled = self.scaled(logits)
        chosen = jax.lax.broadcasted_iota(tokens.dtype, logits.shape, tokens.ndim) == tokens[..., None]
        # Of one term, a sum has no order, and its gradient is no sum, as that of a gather would be.
        picked = jnp.where(chosen, scaled, 0).sum(-1)
        known = (tokens >= 0) & (tokens < logits.shape[-1])
        return jnp.where(known, picked - jnp.log(_sum_of_exp(scaled)), jnp.nan)

    def draw(self, logits: Float[Array, "B V"], words: UInt32[Array, " B"]) -> Int32[Array, " B"]:
        """A token for each row, where its share of the probabilities, added up in order, passes a random word's.

        NO_TOKEN where logits are not finite.
        """
        chosen = jnp.argmax(logits, axis=-1) if self.temperature == 0 else self._at_random(logits, words)
        return jnp.where(jnp.isfinite(logits.max(-1)), chosen, NO_TOKEN).astype(jnp.int32)

    def _at_random(self, logits: Array, words: Array) -> Array:
        scaled = self.scaled(logits)
        shares = jnp.round(jnp.exp(scaled) * (float(UNIT) / _sum_of_exp(scaled))[:, None]).astype(jnp.uint32)
        if self.top_k is None and self.top_p == 1:
            return _where_passed(shares, words)
        order = jnp.argsort(scaled, axis=-1, stable=True, descending=True)
        shares = jnp.take_along_axis(shares, order, axis=-1)
        place = jax.lax.broadcasted_iota(jnp.int32, shares.shape, 1)
        kept = place < (self.top_k or shares.shape[1])
        if self.top_p < 1:
            before = jax.lax.cumsum(shares, axis=1) - shares
            kept &= before < jnp.uint32(math.ceil(self.top_p * UNIT))
        passed = _where_passed(jnp.where(kept, shares, 0), words)
        return jnp.take_along_axis(order, passed[:, None], axis=-1)[:, 0]


def _where_passed(shares: UInt32[Array, "B V"], words: UInt32[Array, " B"]) -> Int[Array, " B"]:
    """The first index at which the sum of a row's shares passes words / 2^32 of all: never one without a share."""
    sums = jax.lax.cumsum(shares, axis=1)
    return jnp.argmax(sums > _high(sums[:, -1], words)[:, None], axis=-1)


def _high(a: Array, b: Array) -> Array:
    """a b / 2^32, rounded down, of uint32: JAX has no integers of 64 bits by default, so by products of 16 bits."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    middle = a_high * b_low + (a_low * b_low >> 16)  # below 2^32
    other = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (other >> 16)


@jax.custom_jvp
def _sum_of_exp(x: Float[Array, "*batch V"]) -> Float[Array, " *batch"]:
    """The sum of exp(x), for x of at most 0, in the same bits whatever its order.

    A term is cut into five digits of 8 bits: up to 2^24 digits of one place add up to less than 2^32.
    """
    rest, total = jnp.exp(x), jnp.zeros(x.shape[:-1], jnp.float32)
    for place in range(1, 6):
        rest = rest * 256
        digit = jnp.floor(rest) if place < 5 else jnp.round(rest)
        rest = rest - digit
        total = total + digit.astype(jnp.uint32).sum(-1, dtype=jnp.uint32).astype(jnp.float32) * 256.0**-place
    return total


@_sum_of_exp.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return _sum_of_exp(x), (jnp.exp(x) * dx).sum(-1)


def keys_of(seeds: UInt32[Array, " B"]) -> Array:
    """A key for each row, whose numbers do not depend on the other rows: not so with other implementations of keys."""
    return jax.vmap(lambda seed: jax.random.key(seed, impl="threefry2x32"))(seeds)


def words_at(keys: Array, number: Any) -> UInt32[Array, " B"]:
    """The number-th random word of each row."""
    return jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, number), (), jnp.uint32))(keys)


def seeds_of(where: str, seed: Any, batch: int) -> UInt32[Array, " B"]:
    """The seed of each row.

    Args:
        where: the function, in errors.
        seed: (B,) integers, or the first row's, from which the others count up.
        batch: rows, B.
    """
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not 0 <= seed < MOST_SEEDS:
            raise bad_value(where, "seed", seed, "numbers from 0 to 2^32 - 1")
        seed = np.array(seed, np.uint32)
    if not isinstance(seed, Array | np.ndarray) or not jnp.issubdtype(seed.dtype, jnp.integer):
        raise bad_type(where, "seed", seed, "an integer or an array of integers")
    if seed.ndim and seed.shape != (batch,):
        raise bad_shape(where, "seed", seed.shape, f"(batch={batch},)")
    if readable(seed):
        for one in np.ravel(seed).tolist():
            if not 0 <= one < MOST_SEEDS:
                raise bad_value(where, "seed", one, "numbers from 0 to 2^32 - 1")
    seeds = jnp.asarray(seed.astype(jnp.uint32))
    return seeds if seeds.ndim else seeds + jnp.arange(batch, dtype=jnp.uint32)
