"""Peers of selective_scan in JAX."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from retrograd.opinfo.cases import Case

from . import Function, Peer, check_takes, load
from .selective_scan import ARGUMENTS, OPTIONS


def jla(case: Case) -> Function:
    """jax-linear-attention's Mosaic GPU kernels, without its fallback for unsupported calls."""
    check_takes(case, ARGUMENTS, OPTIONS)
    attention = load("jla.ops", "linear_attention")
    softplus = bool(case.options.get("dt_softplus"))

    def scan(inputs: Mapping[str, jax.Array]) -> jax.Array:
        y: jax.Array = attention(
            "mamba1",
            *(inputs[name] for name in ("C", "B", "x")),
            dt=inputs["dt"],
            a=inputs["A"],
            d=inputs.get("D"),
            z=inputs.get("z"),
            dt_bias=inputs.get("dt_bias"),
            dt_softplus=softplus,
            impl="mosaic_gpu",
        )[0]
        return y

    return scan


PEERS = (Peer("jla", jla, "jax-linear-attention"),)
