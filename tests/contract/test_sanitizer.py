"""The parser of compute-sanitizer's reports; the calls that run under it use every kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checks import sanitizer
from checks.programs import launches
from checks.sanitizer import Known, Place, Race, parse
from ops import file_of
from sanitized import cases

from retrograd.core.arch import SUPPORTED
from retrograd.ops.infos import NAMES, info

ROOT = Path("/somewhere/project")
SM_90 = SUPPORTED["sm_90"]
KNOWN = sanitizer.known_hazards(Path(__file__).parents[1] / "known_hazards.toml")
BACKWARD_SCAN = "selective_scan/hopper/backward.py", "selective_scan/hopper/walk_back.py"
# A line under which the assembler tells an access of another file's line of that number.
HOPPER = "retrograd/ops/selective_scan/hopper"
TOLD_AS = {(f"{HOPPER}/sequences.py", 32): f"{HOPPER}/backward.py"}
RACES = """\
========= COMPUTE-SANITIZER
ran an_op a_case
========= Error: Race reported between Write access at backward_scan+0x4520 in /somewhere/project/a/make.py:74
=========     and Read access at backward_scan+0x5080 in /somewhere/project/a/finish.py:103 [4096 hazards]
=========     and Read access at backward_scan+0x5100 in /elsewhere/standard.py:293 [1 hazard]
=========
========= Warning: Race reported between Read access at void kernel<(int)3>(T1 *)+0x40
=========     and Write access at void kernel<(int)3>(T1 *)+0x90 [8 hazards]
=========
finished
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
MEMORY = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at forward_whole+0x230 in /somewhere/project/a/forward.py:31
=========     by thread (31,0,0) in block (0,0,0)
=========     Access at 0x7f7a4e000200 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call
=========
========= ERROR SUMMARY: 2 errors
"""
MAKE, FINISH = Place("a/make.py", 74), Place("a/finish.py", 103)


def test_each_pair_of_places_is_read_once_with_its_kernel_and_its_severity() -> None:
    found = parse(RACES, ROOT)
    assert found.finished
    assert not found.errors
    assert found.races == (
        Race("backward_scan", MAKE, FINISH, ("Write", "Read"), "Error"),
        Race("backward_scan", MAKE, Place("/elsewhere/standard.py", 293), ("Write", "Read"), "Error"),
        Race("void kernel<(int)3>(T1 *)", Place("?", 0), Place("?", 0), ("Read", "Write"), "Warning"),
    )


def test_errors_are_told_in_the_tools_own_words() -> None:
    found = parse(MEMORY, ROOT)
    assert not found.finished
    assert [error.splitlines()[0] for error in found.errors] == [
        "Invalid __global__ read of size 4 bytes",
        'Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call',
    ]
    assert "at forward_whole+0x230 in /somewhere/project/a/forward.py:31" in found.errors[0]


def test_a_clean_run_has_a_summary_and_comes_to_its_end() -> None:
    clean = "========= COMPUTE-SANITIZER\nfinished\n========= ERROR SUMMARY: 0 errors\n"
    assert parse(clean).finished
    assert not parse(clean).errors
    assert not parse(clean.replace("finished\n", "")).finished
    assert not parse("finished\n").finished
    failed = "========= Error: process didn't terminate successfully\n"
    assert parse(clean + failed).finished
    assert not parse(clean.replace("finished\n", failed)).finished
    assert not parse(clean + failed).errors


def test_reports_that_are_not_read_are_an_error() -> None:
    with pytest.raises(ValueError, match="counts 3 reports, but 2 were read"):
        parse(MEMORY.replace("2 errors", "3 errors"))
    with pytest.raises(ValueError, match="reports an access as"):
        parse(RACES.replace("Read access at backward_scan+0x5080", "Read access of something"))


def test_a_known_hazard_is_a_pair_of_lines_of_a_kernel_in_either_order() -> None:
    known = Known("backward_scan", (("a/make.py", frozenset({74, 76})), ("a/finish.py", frozenset({103}))), "a barrier")
    race = Race("backward_scan", MAKE, FINISH, ("Write", "Read"), "Error")
    assert known.covers(race)
    assert known.covers(Race("backward_scan", FINISH, MAKE, ("Read", "Write"), "Error"))
    assert not known.covers(Race("forward_scan", MAKE, FINISH, ("Write", "Read"), "Error"))
    assert not known.covers(Race("backward_scan", MAKE, MAKE, ("Write", "Write"), "Error"))
    assert not known.covers(Race("backward_scan", MAKE, Place("a/finish.py", 104), ("Write", "Read"), "Error"))


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: "-".join(Path(file).stem for file, _ in known.between))
def test_the_lines_of_a_known_hazard_reach_shared_memory(known: Known) -> None:
    for file, lines in known.between:
        for line in lines:
            # Reported under the kernel's file, of which only its first line and that after its groups are.
            path = TOLD_AS.get((file, line)) or (file if line in (32, 141) else file.replace(*BACKWARD_SCAN))
            text = (sanitizer.ROOT / path).read_text().splitlines()[line - 1]
            groups = rf"^def {known.kernel}\(|^    gl\.warp_specialize\($|^    if [A-Za-z_]+ (is not None|== 2):$"
            expected = rf"\.(load|store)\(|gl\.sum\(|{groups}"
            assert re.search(expected, text), f"{path}:{line} is {text!r}"


@pytest.mark.parametrize("op", NAMES)
def test_the_calls_under_the_sanitizers_come_to_every_kernel(op: str) -> None:
    one = info(op)
    wanted = {launch.kernel for case in one.tagged("test", "gpu") for _, launch in launches(one, case, SM_90)}
    found = {launch.kernel for case in cases(op) for _, launch in launches(one, case, SM_90)}
    missing = sorted(kernel.__name__ for kernel in wanted - found)
    assert not missing, f"tests/ops/{op}/sanitized.py names no call that runs {missing}"
    assert found == wanted


@pytest.mark.parametrize("op", NAMES)
def test_the_steps_under_the_sanitizers_run(op: str) -> None:
    for step in getattr(file_of(op, "sanitized"), "STEPS", ()):
        step("cpu")
