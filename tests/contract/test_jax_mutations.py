"""The checks of the promises in JAX detect deliberate faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
from checks import contract, jax_contract
from checks.jax_contract import TRANSFORMS
from checks.jax_derivatives import ROADS, check_road

from retrograd.jax import rms_norm
from retrograd.opinfo.info import OpInfo
from retrograd.ops.rms_norm.info import INFO

CASE = INFO.case("plain_fp32")
SEED = 7


def info(function: Callable[..., Any]) -> OpInfo:
    """The `OpInfo` of rms_norm with another JAX function."""
    return replace(INFO, jax=lambda: function)


@jax.custom_vjp
def negated(x: Any) -> Any:
    """An identity whose gradient has the wrong sign."""
    return x


negated.defvjp(lambda x: (x, None), lambda _, dy: (-dy,))


def wrong(x: Any, weight: Any) -> Any:
    """A wrong sign in the backward pass."""
    return rms_norm(negated(x), weight)


def test_a_wrong_sign_in_the_backward_pass() -> None:
    contract.check_errors(INFO, CASE, "cpu", SEED, "jax")
    with pytest.raises(AssertionError):
        contract.check_errors(info(wrong), CASE, "cpu", SEED, "jax")


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_wrong_sign_under_a_transformation(transform: str) -> None:
    with pytest.raises(AssertionError):
        jax_contract.check_transformed(info(wrong), CASE, transform, "cpu", SEED)


@pytest.mark.parametrize("shared", [False, True])
def test_examples_that_mix_under_vmap(shared: bool) -> None:
    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x

    def rolled(axis_size: int, batched: Any, dy: Any) -> Any:
        return jax.numpy.roll(dy, 1, axis=0), batched[0]

    mixing = jax.custom_batching.custom_vmap(lambda dy: dy)
    mixing.def_vmap(rolled)
    identity.defvjp(lambda x: (x, None), lambda _, dy: (mixing(dy),))
    with pytest.raises(AssertionError):
        jax_contract.check_vmap(info(lambda x, w=None, **o: rms_norm(identity(x), **o)), CASE, shared, "cpu", SEED)


def test_an_export_with_another_eps() -> None:
    with pytest.raises(AssertionError):
        jax_contract.check_export(info(lambda x, weight: rms_norm(x, weight, eps=2e-6)), CASE, "cpu", SEED)


@pytest.mark.parametrize("road", [road for road in ROADS if road != "forward"])
def test_second_derivatives_of_zero(road: str) -> None:
    @jax.custom_jvp
    def once(x: Any, weight: Any) -> Any:
        return rms_norm(x, weight)

    @once.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        return rms_norm(*primals), jax.jvp(rms_norm, tuple(map(jax.lax.stop_gradient, primals)), tangents)[1]

    check_road(INFO, CASE, road, "cpu", SEED)
    with pytest.raises(AssertionError):
        check_road(info(once), CASE, road, "cpu", SEED)


def test_a_tangent_of_the_wrong_sign() -> None:
    @jax.custom_jvp
    def turned(x: Any, weight: Any) -> Any:
        return rms_norm(x, weight)

    @turned.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        y, tangent = jax.jvp(rms_norm, primals, tangents)
        return y, -tangent

    with pytest.raises(AssertionError):
        check_road(info(turned), CASE, "forward", "cpu", SEED)
