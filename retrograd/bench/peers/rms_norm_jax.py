"""Peers of rms_norm in JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from retrograd.opinfo.cases import Case

from . import Function, Peer, check_takes
from .rms_norm import OPTIONS, eps


def xla(case: Case) -> Function:
    """The formula in jax.numpy in fp32, fused by XLA.

    The backward pass recomputes from the inputs, as XLA does inside a training step. Without the checkpoint, JAX would
    save fp32 arrays for it, because the two passes are timed separately.
    """
    check_takes(case, frozenset({"x", "weight", "residual", "gate"}), OPTIONS)
    epsilon, prenorm = eps(case), bool(case.options.get("prenorm"))

    def formula(inputs: Mapping[str, jax.Array]) -> Any:
        x = inputs["x"]
        s = x
        if "residual" in inputs:
            s = (x.astype(jnp.float32) + inputs["residual"].astype(jnp.float32)).astype(inputs["residual"].dtype)
        u = s.astype(jnp.float32)
        if "gate" in inputs:
            u = u * jax.nn.silu(inputs["gate"].astype(jnp.float32))
        y = u * jax.lax.rsqrt(jnp.mean(u * u, axis=-1, keepdims=True) + epsilon)
        if "weight" in inputs:
            y = y * inputs["weight"].astype(jnp.float32)
        y = y.astype(x.dtype)
        return (y, s) if prenorm else y

    return jax.checkpoint(formula, prevent_cse=False)


PEERS = (Peer("xla", xla, "jax"),)
