"""Peers of ssd in JAX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

from retrograd.opinfo.cases import Case

from . import Function, Peer, check_takes, load
from .ssd import ARGUMENTS, OPTIONS


def jla(case: Case) -> Function:
    """jax-linear-attention's Mosaic GPU kernels for simple GLA, without its fallback for unsupported calls.

    They have no dt_bias, softplus or D. delta x, delta A and the sum with D x are computed in the same jitted function,
    as in that package's own Mamba-2 layer, and are part of its time. The backward pass recomputes them, as XLA does
    inside a training step.
    """
    check_takes(case, ARGUMENTS, OPTIONS)
    attention = load("jla.ops", "linear_attention")
    softplus = bool(case.options.get("dt_softplus"))

    @partial(jax.checkpoint, prevent_cse=False)
    def before(inputs: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, delta = inputs["x"], inputs["dt"].astype(jnp.float32)
        if "dt_bias" in inputs:
            delta = delta + inputs["dt_bias"]
        if softplus:
            delta = jax.nn.softplus(delta)
        return (delta[..., None] * x.astype(jnp.float32)).astype(x.dtype), delta * inputs["A"]

    @partial(jax.checkpoint, prevent_cse=False)
    def after(y: jax.Array, x: jax.Array, D: jax.Array) -> jax.Array:
        skip = (D if D.ndim == 2 else D[:, None]) * x.astype(jnp.float32)
        return (y.astype(jnp.float32) + skip).astype(x.dtype)

    def scan(inputs: Mapping[str, jax.Array]) -> jax.Array:
        v, g = before({name: inputs[name] for name in ("x", "dt", "A", "dt_bias") if name in inputs})
        y: jax.Array = attention("simple_gla", inputs["C"], inputs["B"], v, g=g, scale=1.0, impl="mosaic_gpu")[0]
        return after(y, inputs["x"], inputs["D"]) if "D" in inputs else y

    return scan


PEERS = (Peer("jla", jla, "jax-linear-attention"),)
