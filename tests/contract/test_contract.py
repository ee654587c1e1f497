"""The promises about the results and gradients of every op, in every case."""

from __future__ import annotations

import pytest
from checks import contract, generation
from checks.layouts import layouts_of
from checks.parts import is_packed
from parameters import CASE, SMALL, each_case, of_a_batch

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.verify import Framework


@pytest.mark.parametrize(CASE, each_case())
def test_outputs_and_gradients_keep_their_error_budget(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_errors(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case())
def test_runs_agree_to_the_bit(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_repeats(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case())
def test_a_row_has_the_same_bits_alone_and_in_a_batch(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_batch_invariance(info, case, device, seed)


@pytest.mark.parametrize(
    (*CASE, "layout"),
    [
        *each_case(cpu=SMALL, cuda=(), each=of_a_batch, spread=True),
        *each_case(cpu=(), each=of_a_batch),
    ],
)
def test_a_row_has_the_same_bits_wherever_the_batch_lies_in_memory(
    info: OpInfo, case: Case, device: str, layout: str, seed: int
) -> None:
    contract.check_batch_invariance(info, case, device, seed, layout)


@pytest.mark.parametrize(CASE, each_case(only=lambda info, case: is_packed(case) and info.alone(case)))
def test_a_packed_sequence_has_the_same_bits_alone(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_packed(info, case, device, seed)


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(CASE, each_case(only=contract.has_gaps))
def test_steps_outside_of_every_sequence_give_zeros_and_reach_nothing(
    info: OpInfo, case: Case, device: str, framework: Framework, seed: int
) -> None:
    contract.check_outside(info, case, device, seed, framework)


@pytest.mark.parametrize(CASE, each_case(cpu=SMALL, only=contract.passes_state))
def test_a_sequence_in_two_parts_has_the_results_of_the_whole(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_state_passing(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case(only=generation.has_prefixes))
def test_steps_have_the_same_bits_whatever_follows_them(info: OpInfo, case: Case, device: str, seed: int) -> None:
    generation.check_prefix(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case(only=generation.can_be_cut))
def test_a_sequence_in_two_calls_has_the_bits_of_the_whole(info: OpInfo, case: Case, device: str, seed: int) -> None:
    generation.check_continue(info, case, device, seed)


@pytest.mark.parametrize(CASE, each_case(only=generation.has_step))
def test_a_sequence_step_by_step_has_the_bits_of_the_whole(info: OpInfo, case: Case, device: str, seed: int) -> None:
    generation.check_step(info, case, device, seed)


def generated_in_jax(info: OpInfo, case: Case) -> bool:
    """Whether the case is tested in JAX: one for each of these ops, because XLA compiles every tested length."""
    return f"{info.name}, {case.name}" in {
        "causal_conv1d, states",
        "linear_scan, complex",
        "selective_scan, initial_state",
    }


@pytest.mark.parametrize(CASE, each_case(only=generated_in_jax))
def test_parts_of_a_sequence_have_the_bits_of_the_whole_in_jax(
    info: OpInfo, case: Case, device: str, seed: int
) -> None:
    generation.check_prefix(info, case, device, seed, "jax")
    if generation.can_be_cut(info, case):
        generation.check_continue(info, case, device, seed, "jax")
        generation.check_step(info, case, device, seed, "jax")


@pytest.mark.gpu
@pytest.mark.parametrize(CASE, each_case(cpu=(), only=lambda info, case: bool(info.structures)))
def test_every_sequence_of_kernels_gives_the_same_bits(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_structures(info, case, device, seed)


@pytest.mark.parametrize(
    (*CASE, "layout"),
    [
        *each_case(cpu=SMALL, cuda=(), each=layouts_of, spread=True),
        *each_case(cpu=(), each=layouts_of),
    ],
)
def test_arrays_of_any_strides_are_taken(info: OpInfo, case: Case, device: str, layout: str, seed: int) -> None:
    contract.check_layout(info, case, layout, device, seed)
