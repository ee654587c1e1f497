"""The check of what kernels read from shared memory before they write it sees a kernel that does so."""

from __future__ import annotations

import pytest
import torch
from unwritten_kernel import SIZE, read_unwritten

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.program import Array, Launch, Program
from retrograd.testing.shared_memory import Filling, filled

CTAS = 1000
SM_90 = SUPPORTED["sm_90"]


def program() -> Program:
    launch = Launch(read_unwritten, grid=CTAS, arrays={"out_ptr": "out"})
    return Program((), (Array("out", (CTAS, SIZE.value), "float32"),), (), (launch,))


@pytest.mark.compile
@pytest.mark.parametrize("arch", SUPPORTED)
def test_all_of_the_shared_memory_is_filled_before_every_launch(arch: str) -> None:
    made = filled(program(), SUPPORTED[arch], 132)
    before, kernel = made.launches
    assert kernel.kernel is read_unwritten
    compiled = build(before, made.arrays, SUPPORTED[arch])
    assert compiled.metadata.shared == SUPPORTED[arch].shared_memory


@pytest.mark.gpu
def test_a_kernel_that_reads_what_it_has_not_written_finds_nan() -> None:
    run = Filling().prepare(program(), [], ["out"], SM_90, torch.device("cuda", 0))
    (out,) = run([])
    assert out.isnan().all()
