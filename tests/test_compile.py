"""Every kernel is built for every architecture without a GPU, and its binary read back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import triton

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.cases import Case
from retrograd.core.program import Launch, Program
from retrograd.core.room import Room
from retrograd.ops.rooms import rooms
from retrograd.testing import programs
from retrograd.testing.parts import is_packed
from retrograd.testing.resources import resources

pytestmark = pytest.mark.compile


# Tags of the cases whose binaries every run builds; the rest is `slow`.
QUICK = {"sm_90": {"strided", "bench"}}
QUICK_ELSEWHERE = {"bench"}
ELSEWHERE = 1  # binary of each kernel for each of the other architectures
# Triton takes minutes for some binaries of these kernels: every run builds those of one case.
TAKES_LONG = {"scan_tiles": "B8_T4096_D2048"}


def each_binary() -> list[Any]:
    """(arch, program, launch): every binary that some case runs, once, under the name of the first such case."""
    found: dict[Any, tuple[str, Program, Launch, str]] = {}
    quick = set()
    built: Counter[tuple[str, Any]] = Counter()
    for name, arch in SUPPORTED.items():
        for room in rooms():
            for case in room.cases:
                for program, launch in programs.launches(room, case, arch):
                    binary = (name, programs.binary(program, launch))
                    if binary not in found:
                        label = f"{name}-{room.name}-{case.name}-{launch.kernel.__name__}-{len(found)}"
                        found[binary] = (name, program, launch, label)
                    chosen = bool(case.tags & QUICK.get(name, QUICK_ELSEWHERE))
                    chosen &= TAKES_LONG.get(launch.kernel.__name__, case.name) == case.name
                    if chosen and binary not in quick and (name in QUICK or built[name, launch.kernel] < ELSEWHERE):
                        quick.add(binary)
                        built[name, launch.kernel] += 1
    return [
        pytest.param(*given, id=label, marks=() if binary in quick else pytest.mark.slow)
        for binary, (*given, label) in found.items()
    ]


@pytest.mark.parametrize(("arch", "program", "launch"), each_binary())
def test_a_kernel_keeps_its_registers_and_its_shared_memory(arch: str, program: Program, launch: Launch) -> None:
    found = resources(build(launch, program.arrays, SUPPORTED[arch]))
    if triton.__version__.startswith("3.6."):  # what plans are tuned for; newer releases have to compile and to fit
        assert found.spills <= launch.parked, f"registers spill to memory: {found}"
        assert found.stack == 0 or launch.parked, f"the kernel needs a stack: {found}"
    assert found.shared <= SUPPORTED[arch].shared_memory


def takes_long(room: Room, case: Case) -> bool:
    """Whether a case has a kernel that Triton takes long for, and is not its room's first."""
    kernels = {launch.kernel.__name__ for _, launch in programs.launches(room, case, SUPPORTED["sm_90"])}
    return case != room.cases[0] and not kernels.isdisjoint(TAKES_LONG)


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("room", "case"),
    [
        pytest.param(
            room, case, id=f"{room.name}-{case.name}", marks=pytest.mark.slow if takes_long(room, case) else ()
        )
        for room in rooms()
        for case in filter(room.stands_for_others, room.tagged("test"))
        if len(case.inputs[room.arguments[0]].shape) > 1 and not is_packed(case)
    ],
)
def test_a_row_off_its_boundary_is_summed_in_the_same_order(room: Room, case: Case, arch: str) -> None:
    programs.check_same_sums(room, case, SUPPORTED[arch])
