"""Of a compiled kernel: registers, spills, memory, barriers, products, the order of its sums."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

SPILL = re.compile(r"\b(?:LDL|STL)\b")
ADDRESS = re.compile(r"/\*([0-9a-f]{4,5})\*/")  # of an instruction
LOW_HALF = re.compile(r"UIADD3 UR\d+, (?P<carry>UP\d), (?P<source>UR\d+), 0x[0-9a-f]+, URZ")
HIGH_HALF = re.compile(r"UIADD3\.X UR\d+, (?P<source>UR\d+), \S+, URZ, (?P<carry>UP\d)")
WRITTEN = re.compile(r"U\S+ (?P<register>UR\d+),")
JUMP = re.compile(r"\bBRA\b.*?\b0x([0-9a-f]+)")


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
    spills = len(SPILL.findall(_sass(compiled))) if stack else 0
    return Resources(found["REG"], spills, stack, compiled.metadata.shared)


def spills_in_loops(compiled: Any) -> int:
    """Spill instructions in the loops of a kernel for NVIDIA that have products of the tensor cores on Hopper."""
    return sum(bool(SPILL.search(line)) for loop in loops_of_products(compiled) for line in loop)


def loops_of_products(compiled: Any) -> list[list[str]]:
    """The instructions of the innermost loops that have products of the tensor cores on Hopper.

    A wait stands behind all loops, and jumps back into the one that it is of.
    """
    code = [line for line in _sass(compiled).splitlines() if ADDRESS.search(line)]
    lines = {int(ADDRESS.findall(line)[0], 16): place for place, line in enumerate(code)}
    jumps = [(lines.get(int(to, 16)), end) for end, line in enumerate(code) for to in JUMP.findall(line)]
    loops = [(first, end) for first, end in jumps if first is not None and first < end]
    loops = [(first, end) for first, end in loops if any("HGMMA" in line for line in code[first:end])]
    innermost = [
        (first, end)
        for first, end in loops
        if not any((first <= a and b <= end and (a, b) != (first, end)) or a < first < b < end for a, b in loops)
    ]
    return [code[first:end] for first, end in innermost]


def wrong_descriptors(compiled: Any) -> list[str]:
    """Of a kernel for Hopper: additions to 64-bit descriptors of matrices that take one register for both halves.

    ptxas 12.8 writes such code for some right operands of 16 or 32 columns, transposed, where one warpgroup multiplies.
    The second product of 16 terms then reads what is anywhere else.
    """
    if "wgmma" not in compiled.asm["ptx"]:
        return []
    code = [re.sub(r"/\*.*?\*/", "", line).strip() for line in _sass(compiled).splitlines() if ADDRESS.search(line)]
    found, low = [], {}
    for line in code:
        if first := LOW_HALF.match(line):
            low[first["carry"]] = first["source"]
        elif second := HIGH_HALF.match(line):
            if low.get(second["carry"]) == second["source"]:
                found.append(line)
        elif written := WRITTEN.match(line):  # what is there now is not what was added to
            low = {carry: source for carry, source in low.items() if source != written["register"]}
    return found


def _sass(compiled: Any) -> str:
    """The instructions of a kernel for NVIDIA."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return _cuobjdump("-sass", file.name)


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
