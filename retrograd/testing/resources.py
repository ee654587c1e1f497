"""Of a compiled kernel: registers, spills, memory, barriers, products, the order of its sums."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one kernel.

    Attributes:
        registers: vector registers per thread.
        spills: NVIDIA: instructions that spill registers to memory or reload them; AMD: spilled registers.
        stack: bytes of stack and local memory per thread.
        shared: bytes of shared memory per program instance.
    """

    registers: int
    spills: int
    stack: int
    shared: int


def resources(compiled: Any) -> Resources:
    """Read the resources of a kernel compiled by `core.build.build` for NVIDIA or AMD."""
    if "amdgcn" in compiled.asm:
        return _amd(compiled)
    return _nvidia(compiled)


def _nvidia(compiled: Any) -> Resources:
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _cuobjdump("--dump-resource-usage", file.name)
        found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
        stack = found["STACK"] + found["LOCAL"]
        # Spilled registers are on the stack, so without one the slow disassembler is not needed.
        instructions = _cuobjdump("-sass", file.name) if stack else ""
    spills = len(re.findall(r"\b(?:LDL|STL)\b", instructions))
    return Resources(found["REG"], spills, stack, compiled.metadata.shared)


def _amd(compiled: Any) -> Resources:
    text = compiled.asm["amdgcn"]
    found = {key: int(value) for key, value in re.findall(r"^\s*-?\s*\.(\w+):\s*(\d+)\s*$", text, re.MULTILINE)}
    # Scalar registers spill to vector registers, not to memory, and do not count.
    return Resources(
        found["vgpr_count"], found["vgpr_spill_count"], found["private_segment_fixed_size"], compiled.metadata.shared
    )


def _cuobjdump(option: str, file: str) -> str:
    """Run the cuobjdump of the Triton package, which finds nvdisasm in its own folder."""
    return subprocess.run([_nvidia_tool("cuobjdump"), option, file], check=True, capture_output=True, text=True).stdout


def _nvidia_tool(name: str) -> Path:
    """A tool of the Triton package."""
    import triton.backends.nvidia

    return Path(triton.backends.nvidia.__path__[0]) / "bin" / name


def serialized(compiled: Any) -> list[str]:
    """The remarks of NVIDIA's assembler that products which were to run side by side follow one another.

    Triton drops them, so the assembler runs once more.
    """
    with NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        command: list[str | Path] = [
            _nvidia_tool("ptxas"),
            "-v",
            f"--gpu-name={_target(compiled)}",
            file.name,
            "-o",
            "/dev/null",
        ]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
    return [line for line in (found.stdout + found.stderr).splitlines() if "serialized" in line]


def _target(compiled: Any) -> str:
    return re.findall(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)[0]


def reductions(compiled: Any) -> list[str]:
    """The layout over threads of each sum or scan across threads, in the order of the kernel.

    It determines the order of a sum: which thread holds which elements, and so which are added first.
    """
    text = compiled.asm["ttgir"]
    named = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", text, re.MULTILINE))
    found = re.findall(r'"tt\.(?:reduce|scan)"\(.*?\}\) : \((.*?)\) ->', text, re.DOTALL)
    return [re.sub(r"#\w+", lambda name: named.get(name[0], name[0]), operand) for operand in found]


def unused_barriers(compiled: Any) -> list[str]:
    """The mbarriers of a Gluon kernel that are initialised and never used.

    The compiler lets what is allocated later share their memory, and a barrier there may change it.
    """
    lines = compiled.asm["ttgir"].splitlines()

    def is_used(value: str) -> bool:
        mentions = [line for line in lines if re.search(rf"{re.escape(value)}\b", line)]
        for line in mentions:
            own, _, operation = line.strip().partition(" = ")
            if own == value or "ttng.init_barrier" in line:
                continue
            if not operation.startswith("ttg.memdesc_index") or is_used(own):
                return True
        return False

    allocated = (re.match(r"\s*(%\w+) = ttg\.local_alloc\b.*memdesc<(?:\d+x)+i64,", line) for line in lines)
    return [found[1] for found in allocated if found and not is_used(found[1])]
