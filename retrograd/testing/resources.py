"""What a compiled kernel takes of the machine, read back from its binary, and the order in which it sums."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one kernel.

    Attributes:
        registers: vector registers a thread.
        spills: registers that do not fit and live in memory; for NVIDIA, the instructions that move them there and back.
        stack: bytes of memory a thread beside its registers.
        shared: bytes of shared memory a program.
    """

    registers: int
    spills: int
    stack: int
    shared: int


def resources(compiled: Any) -> Resources:
    """Read the resources of what `core.build.build` made, for NVIDIA or AMD."""
    if "amdgcn" in compiled.asm:
        return _amd(compiled)
    return _nvidia(compiled)


def _nvidia(compiled: Any) -> Resources:
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _cuobjdump("--dump-resource-usage", file.name)
        # A spill is a load or a store of local memory. Disassembly is slow; without local memory there is nothing to find.
        found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
        local = found["STACK"] + found["LOCAL"]
        spills = len(re.findall(r"\b(?:LDL|STL)\b", _cuobjdump("-sass", file.name))) if local else 0
    return Resources(found["REG"], spills, local, compiled.metadata.shared)


def _amd(compiled: Any) -> Resources:
    text = compiled.asm["amdgcn"]
    found = {key: int(value) for key, value in re.findall(r"^\s*-?\s*\.(\w+):\s*(\d+)\s*$", text, re.MULTILINE)}
    spills = found["vgpr_spill_count"] + found["sgpr_spill_count"]
    return Resources(found["vgpr_count"], spills, found["private_segment_fixed_size"], compiled.metadata.shared)


def _cuobjdump(option: str, file: str) -> str:
    """Run the cuobjdump that comes with Triton, which finds its nvdisasm beside it."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__path__[0]) / "bin" / "cuobjdump"
    return subprocess.run([tool, option, file], check=True, capture_output=True, text=True).stdout


def reductions(compiled: Any) -> list[str]:
    """How each sum across threads is laid out over them, in the order of the kernel.

    The order of a sum follows from this: who holds which elements, and so which are added first.
    """
    text = compiled.asm["ttgir"]
    named = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", text, re.MULTILINE))
    found = re.findall(r'"tt\.reduce"\(.*?\}\) : \(tensor<([^>]*(?:<[^>]*>)*[^>]*)>\)', text, re.DOTALL)
    return [re.sub(r"#\w+", lambda name: named.get(name[0], name[0]), operand) for operand in found]
