"""Calls that hypothesis draws, of every op: the good ones are right, the bad ones are refused by name."""

from __future__ import annotations

from typing import Protocol

import pytest

pytest.importorskip("hypothesis")

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrograd.ops.rooms import NAMES
from retrograd.testing.verify import Framework

from .bad import UPDATES, bad, bad_update, bent
from .good import good, good_in_jax

each_op = pytest.mark.parametrize("op", NAMES)
each_framework = pytest.mark.parametrize("framework", ["torch", "jax"])

# The share of all calls that a test makes; a call that JAX compiles takes as long as a hundred others.
GOOD, GOOD_IN_JAX, BENT, BAD, BAD_UPDATE = 0.4, 0.01, 0.15, 0.15, 0.07


class Call(Protocol):
    def check(self) -> None: ...


@pytest.fixture
def total(request: pytest.FixtureRequest) -> int:
    """Calls in all."""
    calls: int = request.config.getoption("--fuzz")
    return calls


def make(calls: st.SearchStrategy[Call], number: float, seed: int) -> None:
    """Draw so many calls and check each; a failure is made small and printed."""

    @hypothesis.seed(seed)
    @settings(max_examples=max(2, round(number)), database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(calls)
    def check(call: Call) -> None:
        hypothesis.note(f"To make it again, in tests/:\n\nfrom fuzz.paste import *\n{call!r}.check()\n")
        call.check()

    check()


@each_op
def test_a_good_call_is_right(op: str, total: int, seed: int) -> None:
    make(good(op), GOOD * total / len(NAMES), seed)


@each_op
def test_a_good_call_is_right_in_jax(op: str, total: int, seed: int) -> None:
    make(good_in_jax(op), GOOD_IN_JAX * total / len(NAMES), seed)


@each_op
def test_a_call_with_another_shape_or_dtype_is_refused_by_name_or_right(op: str, total: int, seed: int) -> None:
    make(bent(op), BENT * total / len(NAMES), seed)


@each_framework
@each_op
def test_a_bad_call_is_refused_by_name(op: str, framework: Framework, total: int, seed: int) -> None:
    make(bad(op, framework), BAD * total / len(NAMES), seed)


@each_framework
@pytest.mark.parametrize("op", UPDATES)
def test_a_bad_step_of_generation_is_refused_by_name(op: str, framework: Framework, total: int, seed: int) -> None:
    make(bad_update(op, framework), BAD_UPDATE * total / len(UPDATES), seed)
