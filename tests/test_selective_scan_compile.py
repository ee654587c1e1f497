"""selective_scan's kernels built for every architecture, without a GPU and without a framework's binding."""

from __future__ import annotations

from typing import Any

import pytest
from selective_scan_calls import case_spec

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.core.program import Launch, Program
from retrograd.ops.selective_scan.cases import CASES
from retrograd.ops.selective_scan.op import OP
from retrograd.testing.programs import binary
from retrograd.testing.resources import resources

pytestmark = pytest.mark.compile


def each_binary() -> list[Any]:
    found: dict[Any, Any] = {}
    for name, arch in SUPPORTED.items():
        for case in CASES:
            spec = case_spec(case)
            for pass_ in (OP.forward(spec), OP.backward(spec, frozenset(case.inputs))):
                program = pass_.program({}, arch)
                for launch in program.launches if program else ():
                    if launch.grid:
                        label = f"{name}-{case.name}-{launch.kernel.__name__}"
                        key = (name, binary(program, launch))  # type: ignore[arg-type]
                        found.setdefault(key, pytest.param(name, program, launch, id=label))
    return list(found.values())


@pytest.mark.parametrize(("arch", "program", "launch"), each_binary())
def test_nothing_spills(arch: str, program: Program, launch: Launch) -> None:
    found = resources(build(launch, program.arrays, SUPPORTED[arch]))
    assert found.spills == 0, f"registers spill to memory: {found}"
    assert found.stack == 0, f"the kernel needs a stack: {found}"
    assert found.shared <= SUPPORTED[arch].shared_memory
