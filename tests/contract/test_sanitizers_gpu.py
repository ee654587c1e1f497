"""Every kernel under compute-sanitizer's memcheck and racecheck, in small calls."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from checks import sanitizer
from checks.sanitizer import Findings, Tool

from retrograd.ops.infos import NAMES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(sanitizer.find() is None, reason="compute-sanitizer is not on this machine"),
]

TESTS = Path(__file__).parents[1]
CALLS = TESTS / "sanitized.py"
KERNELS = TESTS / "sanitizer_kernels.py"
KNOWN = sanitizer.known_hazards(TESTS / "known_hazards.toml")


@cache
def of_op(tool: Tool, op: str) -> Findings:
    """The findings of a tool for the calls of an op."""
    compile_kernels(op)
    return sanitizer.run(tool, CALLS, [op])


@cache
def compile_kernels(op: str) -> None:
    """Run the calls of an op without a tool, which compiles faster. What fails then fails under the tool, too."""
    subprocess.run([sys.executable, CALLS, op], env=sanitizer.environment(), check=False)


@cache
def of_kernel(name: str) -> Findings:
    """The findings of racecheck for one of the kernels that show its limits."""
    return sanitizer.run("racecheck", KERNELS, [name])


@pytest.mark.parametrize("op", NAMES)
def test_no_kernel_reaches_beyond_an_array(op: str) -> None:
    found = of_op("memcheck", op)
    assert found.finished, found.text[-3000:]
    assert not found.errors, "\n\n".join(found.errors)


@pytest.mark.parametrize("op", NAMES)
def test_accesses_to_shared_memory_are_ordered_but_for_those_whose_barrier_the_tool_does_not_see(op: str) -> None:
    found = of_op("racecheck", op)
    assert found.finished, found.text[-3000:]
    assert not found.errors, "\n\n".join(found.errors)
    unknown = [str(race) for race in found.races if not any(known.covers(race) for known in KNOWN)]
    assert not unknown, "\n".join(unknown)


def test_hazards_are_known_only_where_the_tool_objects_to_a_correct_kernel_too() -> None:
    reported = any(of_op("racecheck", op).races for op in reversed(NAMES))
    correct = [of_kernel(name) for name in ("handed_over", "relayed", "captured")]
    assert all(found.finished for found in correct)
    assert not reported or any(found.races for found in correct)


@pytest.mark.parametrize("name", ["one_group", "copies_of_rounded"])
def test_the_tool_accepts_what_a_barrier_of_the_block_orders(name: str) -> None:
    found = of_kernel(name)
    assert found.finished, found.text[-3000:]
    assert not found.races


@pytest.mark.parametrize("name", ["not_ordered", "copies"])
def test_the_tool_finds_a_race(name: str) -> None:
    found = of_kernel(name)
    assert found.finished, found.text[-3000:]
    assert found.races
