"""Peers of selective_scan in JAX."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from retrograd.core.cases import Case

from . import Function, Peer, check_takes, load
from .selective_scan import ARGUMENTS, OPTIONS


def jla(case: Case) -> Function:
    """jax-linear-attention's Mosaic GPU kernels, and not what it falls back to where they do not serve."""
    check_takes(case, ARGUMENTS, OPTIONS)
    attention = load("jla.ops", "linear_attention")
    softplus = bool(case.options.get("dt_softplus"))

    def scan(given: Mapping[str, jax.Array]) -> jax.Array:
        made: jax.Array = attention(
            "mamba1",
            *(given[name] for name in ("C", "B", "x")),
            dt=given["dt"],
            a=given["A"],
            d=given.get("D"),
            z=given.get("z"),
            dt_bias=given.get("dt_bias"),
            dt_softplus=softplus,
            impl="mosaic_gpu",
        )[0]
        return made

    return scan


PEERS = (Peer("jla", jla, "jax-linear-attention"),)
