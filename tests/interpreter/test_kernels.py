"""Every op's kernels keep the contract in Triton's interpreter, behind the public function and with exact budgets."""

from __future__ import annotations

from typing import Any

import pytest

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.ops.rooms import rooms
from retrograd.testing import contract, integration
from retrograd.testing.budget import draws_for
from retrograd.testing.interpreter import as_float16
from retrograd.testing.layouts import LAYOUTS

CASES: list[Any] = [
    pytest.param(room, as_float16(case), id=f"{room.name}-{case.name}")
    for room in rooms()
    for case in room.tagged("interpreter")
]
each_case = pytest.mark.parametrize(("room", "case"), CASES)
# A case of very few elements takes many draws, and the interpreter its time.
QUICK = [parameters for parameters in CASES if draws_for(parameters.values[1]) <= 16]


@each_case
def test_kernels_keep_the_error_budget_and_write_every_element(room: Room, case: Case, seed: int) -> None:
    contract.check_errors(room, case, "cpu", seed)


@each_case
def test_a_row_has_the_same_bits_alone_and_in_a_batch(room: Room, case: Case, seed: int) -> None:
    contract.check_batch_invariance(room, case, "cpu", seed)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("room", "case"), QUICK)
def test_kernels_reach_every_element_of_strided_arrays(room: Room, case: Case, layout: str, seed: int) -> None:
    contract.check_layout(room, case, layout, "cpu", seed)


@each_case
def test_the_registered_operator_runs_the_same_kernels(room: Room, case: Case, seed: int) -> None:
    integration.check_operator(room, case, "cpu", seed)


@each_case
def test_a_gradient_asked_for_alone_has_the_same_bits(room: Room, case: Case, seed: int) -> None:
    integration.check_subsets(room, case, "cpu", seed)


@each_case
def test_an_output_without_a_gradient_counts_as_zero(room: Room, case: Case, seed: int) -> None:
    integration.check_outputs_alone(room, case, "cpu", seed)
