"""The pass of Triton that its kernels are compiled without changes nothing in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checks.programs import launches

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import info
from retrograd.ops.linear_scan.triton.plan import Plan

ARCHITECTURES = ("sm_90", "gfx942")


def short(plan: Plan) -> Plan:
    """A plan with few steps in a row, for which the pass takes no time."""
    return replace(plan, tile=replace(plan.tile, steps=4))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "case",
    ["states", "shared_channels", *(pytest.param(each, marks=pytest.mark.slow) for each in ("packed", "complex"))],
)
def test_the_code_is_the_same_without_the_pass(
    case: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one: OpInfo = info("linear_scan").variant(replan=short)
    compared = 0
    for program, launch in launches(one, one.case(case), SUPPORTED[arch]):
        if launch.thread_wise:
            found = set[Any]()
            for thread_wise in (True, False):
                # Triton's cache does not tell them apart.
                monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(thread_wise)))
                asm = build(replace(launch, thread_wise=thread_wise), program.arrays, SUPPORTED[arch]).asm
                found.add(asm["ptx" if "ptx" in asm else "amdgcn"])
            assert len(found) == 1
            compared += 1
    assert compared
