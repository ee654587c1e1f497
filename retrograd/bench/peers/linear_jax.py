"""Peers of linear in JAX."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from retrograd.opinfo.cases import Case

from . import Function, Peer


def xla(case: Case) -> Function:
    """XLA's matrix product, by the BLAS or by kernels of its own."""

    def call(inputs: Mapping[str, jax.Array]) -> jax.Array:
        y = jnp.matmul(inputs["x"], inputs["weight"].mT)
        return y + inputs["bias"] if "bias" in inputs else y

    return call


PEERS = (Peer("xla", xla, "jax"),)
