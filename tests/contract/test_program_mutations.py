"""The checks of programs and binaries detect deliberate faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from checks import programs
from checks.resources import resources

from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.build import build
from retrograd.core.program import Launch, Program
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.rms_norm.info import INFO

CASE = INFO.case("plain")
ARCH = SUPPORTED["sm_90"]


def info(change: Callable[[Launch], Launch]) -> OpInfo:
    """The `OpInfo` with every launch of its programs changed."""

    def changed(case: Case, arch: Arch) -> tuple[Program, Program]:
        forward, backward = (
            replace(program, launches=tuple(change(launch) for launch in program.launches))
            for program in INFO.programs(case, arch) or ()
        )
        return forward, backward

    return replace(INFO, programs=changed)


def swapped(launch: Launch) -> Launch:
    """The launch with its first and last present arrays exchanged."""
    arrays = dict(launch.arrays)
    present = [name for name, array in arrays.items() if array is not None]
    arrays[present[0]], arrays[present[-1]] = arrays[present[-1]], arrays[present[0]]
    return replace(launch, arrays=arrays)


def test_an_output_that_is_named_before_the_inputs() -> None:
    programs.check_order(INFO, CASE, ARCH)
    with pytest.raises(AssertionError, match="read before what is written"):
        programs.check_order(info(swapped), CASE, ARCH)


def test_a_launch_that_is_left_out() -> None:
    case = INFO.case("gpu_4096")  # its parameter gradients have a launch of their own
    programs.check_order(INFO, case, ARCH)
    with pytest.raises(AssertionError, match="nothing writes"):
        programs.check_order(info(lambda launch: replace(launch, grid=0)), case, ARCH)


def test_an_output_that_two_launches_write() -> None:
    def twice(case: Case, arch: Arch) -> tuple[Program, Program]:
        both = INFO.programs(case, arch)
        assert both is not None
        forward, backward = both
        return replace(forward, launches=forward.launches * 2), backward

    with pytest.raises(AssertionError, match="an earlier launch has written"):
        programs.check_order(replace(INFO, programs=twice), CASE, ARCH)


@pytest.mark.parametrize("field", ["warps", "tile", "layout"])
def test_a_binary_that_depends_on_the_number_of_rows(field: str) -> None:
    def by_rows(launch: Launch) -> Launch:
        many = launch.scalars.get("rows", 0) > 100  # type: ignore[operator]
        if field == "warps":
            return replace(launch, num_warps=8 if many else 4)
        if field == "tile":
            sizes = launch.constants.get("SIZES")
            sized = {"SIZES": sizes._replace(rows=16 if many else 8)} if sizes else {}
            return replace(launch, constants={**launch.constants, **sized})
        row = 64 if many else 63
        read = {name: own._replace(row=row) for name, own in launch.strided.items() if name in ("x", "dy")}
        return replace(launch, strided={**launch.strided, **read})

    programs.check_same_binaries(INFO, CASE, ARCH, 64, 1024)
    with pytest.raises(AssertionError, match="another binary"):
        programs.check_same_binaries(info(by_rows), CASE, ARCH, 64, 1024)


@pytest.mark.compile
@pytest.mark.parametrize(("arch", "N"), [("sm_90", 4_096), pytest.param("gfx942", 16_384, marks=pytest.mark.slow)])
def test_a_kernel_that_spills(arch: str, N: int) -> None:
    (program, launch), *_ = programs.launches(INFO, INFO.case("gpu_prenorm"), SUPPORTED[arch])
    assert resources(build(launch, program.arrays, SUPPORTED[arch])).spills == 0
    sizes = launch.constants["SIZES"]._replace(columns=N, block=N, rows=1)
    crowded = replace(launch, num_warps=1, constants={**launch.constants, "SIZES": sizes})
    found = resources(build(crowded, program.arrays, SUPPORTED[arch]))
    assert found.spills > 0
    assert found.stack > 0


@pytest.mark.compile
def test_a_sum_whose_order_depends_on_where_a_row_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    sound: Any = programs.second_row
    programs.check_same_sums(INFO, INFO.case("looped"), ARCH)
    # Long rows are summed without a store that would fix their layout, so misaligned ones are summed in another order.
    monkeypatch.setattr(programs, "second_row", lambda *arguments: replace(sound(*arguments), aligned=False))
    with pytest.raises(AssertionError, match="sums the second row as"):
        programs.check_same_sums(INFO, INFO.case("looped"), ARCH)
