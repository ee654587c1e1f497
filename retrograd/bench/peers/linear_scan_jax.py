"""Peers of linear_scan in JAX."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from retrograd.opinfo.cases import Case

from . import Function, NotApplicableError, Peer, check_takes

MOST_STEPS = 4096  # a step of lax.scan takes 14 microseconds on an H200


def associative_scan(case: Case) -> Function:
    """`jax.lax.associative_scan` of pairs."""
    check_takes(case, frozenset({"a", "b"}), frozenset({"reverse"}))
    reverse = bool(case.options.get("reverse"))

    def combine(before: tuple[jax.Array, ...], after: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return before[0] * after[0], after[0] * before[1] + after[1]

    return lambda inputs: jax.lax.associative_scan(combine, (inputs["a"], inputs["b"]), reverse=reverse, axis=1)[1]


def scan(case: Case) -> Function:
    """`jax.lax.scan`, step by step."""
    check_takes(case, frozenset({"a", "b", "initial_state"}), frozenset({"reverse"}))
    T = case.inputs["b"].shape[1]
    if T > MOST_STEPS:
        raise NotApplicableError(f"it takes a second for more than {MOST_STEPS} steps")
    reverse = bool(case.options.get("reverse"))

    def step(state: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state = pair[0] * state + pair[1]
        return state, state

    def whole(inputs: Mapping[str, jax.Array]) -> jax.Array:
        a, b = (jnp.moveaxis(inputs[name], 1, 0) for name in "ab")
        start = inputs.get("initial_state", jnp.zeros(b.shape[1:], b.dtype))
        return jnp.moveaxis(jax.lax.scan(step, start, (a, b), reverse=reverse)[1], 0, 1)

    return whole


PEERS = (
    Peer("lax.associative_scan", associative_scan, "jax"),
    Peer("lax.scan", scan, "jax"),
)
