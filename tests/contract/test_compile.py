"""Every kernel is built for every architecture without a GPU, and the resources of its binary are checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

import pytest
import strided_kernels
import triton
from checks import programs
from checks.parts import is_packed
from checks.resources import resources, unused_barriers, wrong_descriptors

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.program import Launch, Program
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import infos

pytestmark = pytest.mark.compile


# Run by `make architectures`. Not `slow`: one binary of a kernel on each architecture, on the one that plans are tuned
# for that of a benchmark if there is one. Others have the same code with other constants.
TUNED_FOR = "sm_90"
# Triton takes seconds to minutes for a binary of these kernels. One is built for TUNED_FOR and one for each of NEWEST,
# each vendor's newest architecture. Where two cases are named, the first is for TUNED_FOR, the second for the others.
TAKES_LONG = {"scan_tiles": ("B8_T4096_D2048", "complex"), "backward_scan": None, "forward_scan": None, "walk": None}
NEWEST = ("sm_100", "gfx950")


def builds(arch: str, kernel: str) -> int:
    """The number of binaries of a kernel that are not `slow`."""
    return 0 if kernel in TAKES_LONG and arch not in (TUNED_FOR, *NEWEST) else 1


def each_binary(archs: Container[str]) -> list[Any]:
    """(arch, program, launch) of every distinct binary, named after the first case that runs it."""
    found: dict[Any, tuple[str, Program, Launch, str]] = {}
    for name, arch in SUPPORTED.items():
        if name not in archs:
            continue
        for info in infos():
            # Benchmarks first, then the representative cases.
            for case in sorted(info.cases, key=lambda c: ("bench" not in c.tags, "strided" not in c.tags)):
                for program, launch in programs.launches(info, case, arch):
                    label = f"{name}-{info.name}-{case.name}-{launch.kernel.__name__}-{len(found)}"
                    found.setdefault((name, programs.binary(program, launch)), (name, program, launch, label))
    built: Counter[tuple[str, Any]] = Counter()
    parameters = []
    for arch_name, program, launch, label in found.values():
        kernel = launch.kernel.__name__
        cases = TAKES_LONG.get(kernel)
        quick = (cases is None or f"-{cases[arch_name != TUNED_FOR]}-" in label) and built[
            arch_name, launch.kernel
        ] < builds(arch_name, kernel)
        built[arch_name, launch.kernel] += quick
        marks = () if quick else (pytest.mark.slow,)
        parameters.append(pytest.param(arch_name, program, launch, id=label, marks=marks))
    return parameters


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The binaries of all architectures, whose plans take seconds, only where their tests are selected."""
    if "launch" in metafunc.fixturenames:
        archs = () if "not architectures" in metafunc.config.option.markexpr else SUPPORTED
        metafunc.parametrize(("arch", "program", "launch"), each_binary(archs))


@pytest.mark.architectures
def test_a_kernel_keeps_its_registers_and_its_shared_memory(arch: str, program: Program, launch: Launch) -> None:
    compiled = build(launch, program.arrays, SUPPORTED[arch])
    found = resources(compiled)
    assert not unused_barriers(compiled)
    assert arch != "sm_90" or not wrong_descriptors(compiled)
    if triton.__version__.startswith(
        "3.6."
    ):  # plans are tuned for 3.6; with others, kernels only have to compile and fit
        assert found.spills <= launch.allowed_spills, f"registers spill to memory: {found}"
        assert found.stack == 0 or launch.allowed_spills, f"the kernel needs a stack: {found}"
    assert found.shared <= SUPPORTED[arch].shared_memory


def test_multiply_adds_are_fused_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits depend on it."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    made = strided_kernels.program((strided_kernels.COLUMNS, 1), None)
    assert build(made.launches[0], made.arrays, SUPPORTED[TUNED_FOR]).metadata.enable_fp_fusion


def takes_long(info: OpInfo, case: Case) -> bool:
    """Whether a case has a kernel that Triton compiles slowly."""
    return any(
        launch.kernel.__name__ == "scan_tiles" for _, launch in programs.launches(info, case, SUPPORTED["sm_90"])
    )


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("info", "case"),
    [
        pytest.param(
            info, case, id=f"{info.name}-{case.name}", marks=pytest.mark.slow if takes_long(info, case) else ()
        )
        for info in infos()
        for case in filter(info.is_representative, info.tagged("test"))
        if len(case.inputs[info.arguments[0]].shape) > 1 and not is_packed(case)
    ],
)
def test_a_row_off_its_boundary_is_summed_in_the_same_order(info: OpInfo, case: Case, arch: str) -> None:
    programs.check_same_sums(info, case, SUPPORTED[arch])
