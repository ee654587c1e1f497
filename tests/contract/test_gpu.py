"""Promises of every op on a GPU in addition to the contract, which the other files also run on a GPU."""

from __future__ import annotations

import pytest
import torch
from checks import contract, cuda
from parameters import CASE, each_case

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(CASE, each_case(cpu=()))
def test_a_cuda_graph_replays_to_the_bits_of_eager(info: OpInfo, case: Case, device: str, seed: int) -> None:
    cuda.check_graph(info, case, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=()))
def test_kernels_run_on_the_current_stream(info: OpInfo, case: Case, device: str, seed: int) -> None:
    cuda.check_stream(info, case, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=()))
def test_many_runs_agree_to_the_bit(info: OpInfo, case: Case, device: str, seed: int) -> None:
    contract.check_repeats(info, case, device, seed, runs=20)


def is_first_of_several_sequences(info: OpInfo, case: Case) -> bool:
    return bool(info.structures) and case is info.tagged("gpu")[0]


@pytest.mark.parametrize(CASE, each_case(cpu=(), cuda=("gpu",), only=is_first_of_several_sequences))
def test_hundreds_of_runs_of_every_sequence_of_kernels_agree(info: OpInfo, case: Case, device: str, seed: int) -> None:
    # A copy that overtook a read of the same memory changed the results of one run in a hundred.
    contract.check_structures(info, case, device, seed, runs=100)


@pytest.mark.parametrize(CASE, each_case(cpu=()))
def test_what_earlier_kernels_left_in_shared_memory_changes_nothing(
    info: OpInfo, case: Case, device: str, seed: int
) -> None:
    cuda.check_shared_memory(info, case, seed)


@pytest.mark.parametrize(CASE, each_case(cpu=()))
def test_other_work_on_the_gpu_changes_nothing(info: OpInfo, case: Case, device: str, seed: int) -> None:
    # Program instances then start in another order and on other multiprocessors.
    busy = torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(busy):
        for _ in range(20):
            a = a @ a / 64
    contract.check_repeats(info, case, device, seed, runs=5)
    torch.cuda.synchronize()
