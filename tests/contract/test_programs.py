"""The promises of every program, for every architecture; nothing is compiled."""

from __future__ import annotations

from typing import Any

import pytest
from checks import programs
from checks.parts import batch_size, is_packed

from retrograd.core.arch import SUPPORTED
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos


def of_infos(*tags: str) -> list[Any]:
    """(info, case, architecture)."""
    return [
        pytest.param(info, case, arch, id=f"{info.name}-{case.name}-{arch}")
        for info in infos()
        for case in info.tagged(*tags)
        for arch in SUPPORTED
    ]


BATCHED = [p for p in of_infos("test", "gpu") if batch_size(*p.values[:2]) or is_packed(p.values[1])]


@pytest.mark.parametrize(("info", "case", "arch"), of_infos("test", "gpu", "bench"))
def test_kernels_name_what_they_read_before_what_they_write(info: OpInfo, case: Case, arch: str) -> None:
    programs.check_order(info, case, SUPPORTED[arch])


@pytest.mark.parametrize("info", infos(), ids=lambda info: info.name)
def test_a_first_kernel_makes_no_descriptors_in_memory_still_in_use(info: OpInfo) -> None:
    for case in info.tagged("gpu", "bench"):
        programs.check_first_kernels(info, case, SUPPORTED["sm_90"])


@pytest.mark.parametrize(("info", "case", "arch"), BATCHED)
def test_the_number_of_rows_does_not_decide_the_binary(info: OpInfo, case: Case, arch: str) -> None:
    programs.check_same_binaries(info, case, SUPPORTED[arch], 1, 2, 3, 16, 64, 1021, 2**20)
