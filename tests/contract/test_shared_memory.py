"""The checks of how kernels use shared memory find kernels that use it wrongly."""

from __future__ import annotations

import pytest
import torch
from careless_kernels import program, unused, unwritten
from checks.resources import unused_barriers
from checks.shared_memory import Filling, filled

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build

SM_90 = SUPPORTED["sm_90"]


@pytest.mark.compile
@pytest.mark.parametrize("arch", SUPPORTED)
def test_all_of_the_shared_memory_is_filled_before_every_launch(arch: str) -> None:
    made = filled(program(unwritten), SUPPORTED[arch], 132)
    before, kernel = made.launches
    assert kernel.kernel is unwritten
    compiled = build(before, made.arrays, SUPPORTED[arch])
    assert compiled.metadata.shared == SUPPORTED[arch].shared_memory


@pytest.mark.gpu
def test_a_kernel_that_reads_what_it_has_not_written_finds_nan() -> None:
    run = Filling().prepare(program(unwritten), [], ["out"], SM_90, torch.device("cuda", 0))
    (out,) = run([])
    assert out.isnan().all()


@pytest.mark.compile
def test_a_barrier_that_nobody_uses_is_found() -> None:
    made = program(unused)
    assert unused_barriers(build(made.launches[0], made.arrays, SM_90)) == ["%left"]
