"""Higher precision from pairs of JAX numbers, for JAX without float64 enabled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


@partial(jax.tree_util.register_dataclass, data_fields=["high", "low"], meta_fields=[])
@dataclass(frozen=True, slots=True)
class Pair:
    """The numbers `high + low`, where `high` is the rounded sum.

    Every product that is later subtracted from a rounded sum is exact, so a compiler may fuse it without effect.
    Source: Dekker, A floating-point technique for extending the available precision (1971).
    """

    high: Any
    low: Any

    def __mul__(self, other: Pair) -> Pair:
        (a, b), (c, d) = _halves(self.high), _halves(other.high)
        rest = a * d + b * c + b * d + (self.high * other.low + self.low * other.high)
        return _rounded(a * c, rest)

    def __add__(self, other: Pair) -> Pair:
        total = self.high + other.high
        part = total - self.high
        lost = (self.high - (total - part)) + (other.high - part)
        return _rounded(total, lost + (self.low + other.low))

    def __sub__(self, other: Pair) -> Pair:
        return self + Pair(-other.high, -other.low)


def _rounded(high: Any, low: Any) -> Pair:
    """The sum of two numbers of which the first has the larger magnitude."""
    total = high + low
    return Pair(total, low - (total - high))


def _halves(x: Any) -> tuple[Any, Any]:
    """Two numbers whose sum is x, each with so few bits that products of such numbers are exact."""
    info = jnp.finfo(x.dtype)
    high = jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=(info.nmant - 1) // 2)
    return high, x - high
