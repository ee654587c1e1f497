"""Every op's kernels keep the contract in Triton's interpreter, called through the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from checks import contract, generation, integration
from checks.interpreter import as_float16
from checks.layouts import layouts_of
from checks.parts import is_packed

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos

# The interpreter is slow: every run has the representative cases, the rest are marked `slow`. So are some of these
# where the kernels go step by step.
LEFT_OUT = {
    "linear_scan": {"states", "shared_channels", "fp32_decay"},
    "selective_scan": {"groups", "states", "mamba"},
    "ssd": {"mamba", "groups", "states", "packed"},  # test_ssd_kernels.py has calls with fewer heads
    "gated_delta_rule": {"blocks", "packed"},  # and so has the folder of its tests
}


def every_run(info: OpInfo, case: Case) -> bool:
    """Whether a case is interpreted in every run."""
    return not info.time_axis or (info.is_representative(case) and case.name not in LEFT_OUT.get(info.name, ()))


CASES: list[Any] = [
    pytest.param(
        info,
        as_float16(case),
        id=f"{info.name}-{case.name}",
        marks=() if every_run(info, case) else pytest.mark.slow,
    )
    for info in infos()
    for case in info.tagged("interpreter")
]
# The contract draws each case at most this often.
MOST_DRAWS = 1
each_case = pytest.mark.parametrize(("info", "case"), CASES)


def those(only: Callable[[OpInfo, Case], bool]) -> list[Any]:
    """The cases that satisfy a predicate."""
    return [parameters for parameters in CASES if only(*parameters.values)]


def quick(only: Callable[[OpInfo, Case], bool]) -> list[Any]:
    """Like `those`, but marked `slow` if the kernels go step by step, which takes the interpreter seconds per call."""
    return [
        pytest.param(*p.values, id=p.id, marks=pytest.mark.slow if p.values[0].time_axis else p.marks)
        for p in those(only)
    ]


few = pytest.mark.parametrize(("info", "case"), quick(OpInfo.is_representative))
LAID_OUT = [
    pytest.param(*parameters.values, layout, id=f"{parameters.id}-{layout}", marks=parameters.marks)
    for parameters in quick(lambda info, case: True)
    for layout in layouts_of(*parameters.values)
]


@each_case
def test_kernels_keep_the_error_budget_and_write_every_element(info: OpInfo, case: Case, seed: int) -> None:
    contract.check_errors(info, case, "cpu", seed, most_draws=MOST_DRAWS)


@few
def test_a_row_has_the_same_bits_alone_and_in_a_batch(info: OpInfo, case: Case, seed: int) -> None:
    contract.check_batch_invariance(info, case, "cpu", seed)


@pytest.mark.parametrize(("info", "case"), quick(lambda info, case: is_packed(case) and info.is_representative(case)))
def test_a_packed_sequence_has_the_same_bits_alone(info: OpInfo, case: Case, seed: int) -> None:
    contract.check_packed(info, case, "cpu", seed)


@pytest.mark.parametrize(
    ("info", "case"), quick(lambda info, case: contract.passes_state(info, case) and info.is_representative(case))
)
def test_a_sequence_in_two_parts_has_the_results_of_the_whole(info: OpInfo, case: Case, seed: int) -> None:
    contract.check_state_passing(info, case, "cpu", seed)


@pytest.mark.parametrize(("info", "case"), quick(generation.has_prefixes))
def test_steps_have_the_same_bits_whatever_follows_them(info: OpInfo, case: Case, seed: int) -> None:
    generation.check_prefix(info, case, "cpu", seed)


@pytest.mark.parametrize(("info", "case"), quick(generation.can_be_cut))
def test_a_sequence_in_two_calls_has_the_bits_of_the_whole(info: OpInfo, case: Case, seed: int) -> None:
    generation.check_continue(info, case, "cpu", seed)


@pytest.mark.parametrize(("info", "case"), quick(generation.has_step))
def test_a_sequence_step_by_step_has_the_bits_of_the_whole(info: OpInfo, case: Case, seed: int) -> None:
    generation.check_step(info, case, "cpu", seed)


# Those of selective_scan are in Gluon, which has no interpreter.
@pytest.mark.parametrize(("info", "case"), quick(lambda info, case: info.name == "linear_scan"))
def test_every_sequence_of_kernels_gives_the_same_bits(info: OpInfo, case: Case, seed: int) -> None:
    contract.check_structures(info, case, "cpu", seed)


@pytest.mark.parametrize(("info", "case", "layout"), LAID_OUT)
def test_kernels_reach_every_element_of_strided_arrays(info: OpInfo, case: Case, layout: str, seed: int) -> None:
    contract.check_layout(info, case, layout, "cpu", seed, once=True)


@few
def test_the_registered_operator_runs_the_same_kernels(info: OpInfo, case: Case, seed: int) -> None:
    integration.check_operator(info, case, "cpu", seed)


@few
def test_a_gradient_asked_for_alone_has_the_same_bits(info: OpInfo, case: Case, seed: int) -> None:
    integration.check_subsets(info, case, "cpu", seed)


@few
def test_an_output_without_a_gradient_counts_as_zero(info: OpInfo, case: Case, seed: int) -> None:
    integration.check_outputs_alone(info, case, "cpu", seed)
