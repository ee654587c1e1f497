"""Calls of every op drawn by hypothesis: good calls are right, bad calls are refused by name."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")

from ops.attention.fuzz_dot_product import BesideJax, beside_jax

from retrograd.ops.infos import NAMES
from retrograd.testing.verify import Framework

from .bad import UPDATES, Bad, Bent, bad, bad_function, bad_update, bent
from .draws import each
from .good import Good, good, good_in_jax

each_op = pytest.mark.parametrize("op", NAMES)
each_framework = pytest.mark.parametrize("framework", ["torch", "jax"])

# The share of all calls that each test runs; a call compiled by JAX takes as long as a hundred others.
GOOD, GOOD_IN_JAX, BENT, BAD, BAD_UPDATE, BAD_FUNCTION, BESIDE_JAX = 0.4, 0.01, 0.15, 0.15, 0.07, 0.03, 0.1


@pytest.fixture
def total(request: pytest.FixtureRequest) -> int:
    """The total number of calls."""
    calls: int = request.config.getoption("--fuzz")
    return calls


def check(call: Good | Bad | Bent | BesideJax) -> None:
    call.check()


@each_op
def test_a_good_call_is_right(op: str, total: int, seed: int) -> None:
    each(good(op), GOOD * total / len(NAMES), seed, check)


@each_op
def test_a_good_call_is_right_in_jax(op: str, total: int, seed: int) -> None:
    each(good_in_jax(op), GOOD_IN_JAX * total / len(NAMES), seed, check)


@each_op
def test_a_call_with_another_shape_or_dtype_is_refused_by_name_or_right(op: str, total: int, seed: int) -> None:
    each(bent(op), BENT * total / len(NAMES), seed, check)


@each_framework
@each_op
def test_a_bad_call_is_refused_by_name(op: str, framework: Framework, total: int, seed: int) -> None:
    each(bad(op, framework), BAD * total / len(NAMES), seed, check)


@each_framework
@pytest.mark.parametrize("op", UPDATES)
def test_a_bad_step_of_generation_is_refused_by_name(op: str, framework: Framework, total: int, seed: int) -> None:
    each(bad_update(op, framework), BAD_UPDATE * total / len(UPDATES), seed, check)


@pytest.mark.parametrize(
    ("name", "framework"),
    [("attention_qkvpacked", "torch"), ("attention_qkvpacked", "jax"), ("dot_product_attention", "jax")],
)
def test_a_bad_call_of_a_function_with_names_of_its_own_is_refused_by_these(
    name: str, framework: Framework, total: int, seed: int
) -> None:
    each(bad_function(name, framework), BAD_FUNCTION * total, seed, check)


def test_what_jax_takes_as_attention_is_taken_and_what_is_refused_is_named(total: int, seed: int) -> None:
    each(beside_jax(), BESIDE_JAX * total, seed, check)
