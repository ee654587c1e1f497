"""What a user is promised of the numbers that come out of an op: of every op, in every case."""

from __future__ import annotations

import pytest
from parameters import CASE, SMALL, each_case

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.testing import contract
from retrograd.testing.layouts import LAYOUTS


@pytest.mark.parametrize(CASE, each_case())
def test_outputs_and_gradients_keep_their_error_budget(room: Room, case: Case, device: str, seed: int) -> None:
    contract.check_errors(room, case, device, seed)


@pytest.mark.parametrize(CASE, each_case())
def test_runs_agree_to_the_bit(room: Room, case: Case, device: str, seed: int) -> None:
    contract.check_repeats(room, case, device, seed)


@pytest.mark.parametrize(CASE, each_case())
def test_a_row_has_the_same_bits_alone_and_in_a_batch(room: Room, case: Case, device: str, seed: int) -> None:
    contract.check_batch_invariance(room, case, device, seed)


@pytest.mark.parametrize((*CASE, "layout"), each_case(*LAYOUTS, cpu=SMALL))
def test_arrays_of_any_strides_are_taken(room: Room, case: Case, device: str, layout: str, seed: int) -> None:
    contract.check_layout(room, case, layout, device, seed)
