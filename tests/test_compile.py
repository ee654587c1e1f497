"""Every kernel is built for every architecture without a GPU, and its binary read back."""

from __future__ import annotations

from typing import Any

import pytest

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.cases import Case
from retrograd.core.program import Launch, Program
from retrograd.core.room import Room
from retrograd.ops.rooms import rooms
from retrograd.testing import programs
from retrograd.testing.resources import resources

pytestmark = pytest.mark.compile


def each_binary() -> list[Any]:
    """(arch, program, launch): every binary that some case runs, once, under the name of the first such case."""
    found: dict[Any, Any] = {}
    for name, arch in SUPPORTED.items():
        for room in rooms():
            for case in room.cases:
                for program, launch in programs.launches(room, case, arch):
                    binary = (name, programs.binary(program, launch))
                    if binary not in found:
                        label = f"{name}-{room.name}-{case.name}-{launch.kernel.__name__}-{len(found)}"
                        found[binary] = pytest.param(name, program, launch, id=label)
    return list(found.values())


@pytest.mark.parametrize(("arch", "program", "launch"), each_binary())
def test_a_kernel_keeps_its_registers_and_its_shared_memory(arch: str, program: Program, launch: Launch) -> None:
    found = resources(build(launch, program.arrays, SUPPORTED[arch]))
    assert found.spills == 0, f"registers spill to memory: {found}"
    assert found.stack == 0, f"the kernel needs a stack: {found}"
    assert found.shared <= SUPPORTED[arch].shared_memory


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.parametrize(
    ("room", "case"),
    [
        pytest.param(room, case, id=f"{room.name}-{case.name}")
        for room in rooms()
        for case in room.tagged("test")
        if len(case.inputs[room.arguments[0]].shape) > 1
    ],
)
def test_a_row_off_its_boundary_is_summed_in_the_same_order(room: Room, case: Case, arch: str) -> None:
    programs.check_same_sums(room, case, SUPPORTED[arch])
