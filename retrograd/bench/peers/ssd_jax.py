"""Peers of ssd in JAX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

from retrograd.core.cases import Case

from . import Function, Peer, check_takes, load
from .ssd import ARGUMENTS, OPTIONS


def jla(case: Case) -> Function:
    """jax-linear-attention's Mosaic GPU kernels for simple GLA, and not what it falls back to where they do not serve.

    They know neither dt_bias nor softplus nor D. delta x, delta A and the sum with D x are made around them in the same
    jitted function, as in that package's own Mamba-2 layer, and are part of its time. Both are made again in the
    backward pass, as XLA arranges it inside a training step.
    """
    check_takes(case, ARGUMENTS, OPTIONS)
    attention = load("jla.ops", "linear_attention")
    softplus = bool(case.options.get("dt_softplus"))

    @partial(jax.checkpoint, prevent_cse=False)
    def before(given: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, delta = given["x"], given["dt"].astype(jnp.float32)
        if "dt_bias" in given:
            delta = delta + given["dt_bias"]
        if softplus:
            delta = jax.nn.softplus(delta)
        return (delta[..., None] * x.astype(jnp.float32)).astype(x.dtype), delta * given["A"]

    @partial(jax.checkpoint, prevent_cse=False)
    def after(y: jax.Array, x: jax.Array, D: jax.Array) -> jax.Array:
        skip = (D if D.ndim == 2 else D[:, None]) * x.astype(jnp.float32)
        return (y.astype(jnp.float32) + skip).astype(x.dtype)

    def scan(given: Mapping[str, jax.Array]) -> jax.Array:
        v, g = before({name: given[name] for name in ("x", "dt", "A", "dt_bias") if name in given})
        y: jax.Array = attention("simple_gla", given["C"], given["B"], v, g=g, scale=1.0, impl="mosaic_gpu")[0]
        return after(y, given["x"], given["D"]) if "D" in given else y

    return scan


PEERS = (Peer("jla", jla, "jax-linear-attention"),)
