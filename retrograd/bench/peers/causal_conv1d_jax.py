"""Peers of causal_conv1d in JAX."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from retrograd.opinfo.cases import Case

from . import Function, Peer, check_takes, load
from .causal_conv1d import ARGUMENTS, OPTIONS


def jla(case: Case) -> Function:
    """jax-linear-attention's Mosaic GPU kernels."""
    check_takes(case, ARGUMENTS, OPTIONS)
    convolve = load("jla.ops.mosaic_gpu.short_conv", "short_conv")
    activation = bool(case.options.get("activation"))
    return lambda inputs: convolve(inputs["x"], inputs["weight"], inputs.get("bias"), activation=activation)


def xla(case: Case) -> Function:
    """The sum over shifted inputs in fp32, fused by XLA.

    The backward pass recomputes from the inputs, as XLA does inside a training step. Without the checkpoint, JAX would
    save fp32 arrays for it, because the two passes are timed separately.
    """
    check_takes(case, ARGUMENTS, OPTIONS)
    activation = bool(case.options.get("activation"))

    def formula(inputs: Mapping[str, jax.Array]) -> jax.Array:
        x, weight = inputs["x"], inputs["weight"].astype(jnp.float32)
        W, T = weight.shape[1], x.shape[1]
        padded = jnp.pad(x, ((0, 0), (W - 1, 0), (0, 0))).astype(jnp.float32)
        y = jnp.zeros((), jnp.float32)
        for k in range(W):
            y = y + padded[:, k : k + T] * weight[:, k]
        if "bias" in inputs:
            y = y + inputs["bias"].astype(jnp.float32)
        return (jax.nn.silu(y) if activation else y).astype(x.dtype)

    return jax.checkpoint(formula, prevent_cse=False)


PEERS = (
    Peer("jla", jla, "jax-linear-attention"),
    Peer("xla", xla, "jax"),
)
