"""The bits of the portable path in float64, which no kernel takes: alone, in a batch, in any layout, and along time."""

from __future__ import annotations

import pytest
from checks import contract, generation
from parameters import CASE, SMALL, each_case, of_a_batch

from retrograd.opinfo.cases import Case, in_dtypes
from retrograd.opinfo.info import OpInfo

WIDE = {"float32": "float64", "bfloat16": "float64", "float16": "float64", "complex64": "complex128"}


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, cuda=()))
def test_a_row_and_a_sequence_have_the_same_bits_alone(info: OpInfo, case: Case, device: str, seed: int) -> None:
    case = in_dtypes(case, WIDE)
    contract.check_batch_invariance(info, case, device, seed)
    if info.alone(case):
        contract.check_packed(info, case, device, seed)


@pytest.mark.parametrize((*CASE, "layout"), each_case(cpu=SMALL, cuda=(), each=of_a_batch, spread=True))
def test_so_they_have_wherever_the_batch_lies_in_memory(
    info: OpInfo, case: Case, device: str, layout: str, seed: int
) -> None:
    contract.check_batch_invariance(info, in_dtypes(case, WIDE), device, seed, layout)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, cuda=(), only=generation.has_prefixes))
def test_parts_of_a_sequence_have_the_bits_of_the_whole(info: OpInfo, case: Case, device: str, seed: int) -> None:
    case = in_dtypes(case, WIDE)
    generation.check_prefix(info, case, device, seed)
    if generation.can_be_cut(info, case):
        generation.check_continue(info, case, device, seed)
    if generation.has_step(info, case):
        generation.check_step(info, case, device, seed)
