"""What a change did to the binaries of an op, without a GPU: hashes of their PTX, before and after.

python tests/ptx.py OP OUT.json [--all]      in a checkout before the change, and in one after it
python tests/ptx.py --compare A.json B.json

Without --all, up to 3 binaries of each kernel.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from checks import programs
from triton import knobs
from triton.backends.nvidia.compiler import CUDABackend

from retrograd.core.arch import SUPPORTED
from retrograd.core.build import build
from retrograd.ops.infos import info

FEW = 3  # binaries of a kernel
ARCH = SUPPORTED["sm_90"]
# How much of two binaries is the same, from everything to nothing; each has a hash in a file, in this order.
SAME = ("everything", "all but where parameters are loaded", "the instructions, in another order")


def hashes(ptx: str, kernel: str) -> list[str]:
    """Of the text with canonical names; without loads of parameters; of the sorted instructions alone."""
    text = re.sub(r"//.*", "", ptx[ptx.index("{") :]).replace(kernel, "KERNEL")
    names: dict[str, str] = {}
    text = re.sub(r"\b\w+_param_\d+\b|\$L__[\w$]+", lambda m: names.setdefault(m[0], f"name{len(names)}"), text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rest = [line for line in lines if "ld.param" not in line and not line.startswith(".reg")]
    registers: dict[str, str] = {}
    renamed = [re.sub(r"%[a-z]+\d+\b", lambda m: registers.setdefault(m[0], f"%{len(registers)}"), x) for x in rest]
    code = [line for line in rest if line[0] not in "{}." and not line.endswith(":")]
    instructions = sorted(re.sub(r"^@!?%p\d+\s+", "", line).split()[0] for line in code)
    return [hashlib.sha256("\n".join(part).encode()).hexdigest()[:16] for part in (lines, renamed, instructions)]


def collect(op: str, out: Path, most: float) -> None:
    """Compile an op's binaries to PTX, benchmarks first, and write their hashes."""
    made: list[tuple[str, str]] = []
    to_ptx = CUDABackend.make_ptx

    def make_ptx(self: Any, source: Any, metadata: Any, *rest: Any) -> str:
        made.append((to_ptx(self, source, metadata, *rest), metadata["name"]))
        return made[-1][0]

    CUDABackend.make_ptx = make_ptx
    CUDABackend.make_cubin = lambda *_: b""  # ptxas takes most of the time
    knobs.compilation.always_compile = True
    found: dict[str, list[str]] = {}
    seen, counts = set[Any](), Counter[str]()
    one = info(op)
    for case in sorted(one.cases, key=lambda case: ("bench" not in case.tags, "strided" not in case.tags)):
        for place, (program, launch) in enumerate(programs.launches(one, case, ARCH)):
            kernel, binary = launch.kernel.__module__ + "." + launch.kernel.__name__, programs.binary(program, launch)
            if binary in seen or counts[kernel] >= most:
                continue
            seen.add(binary)
            counts[kernel] += 1
            build(launch, program.arrays, ARCH)
            found[f"{case.name}, launch {place}: {launch.kernel.__name__}"] = hashes(*made[-1])
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{op}: {len(found)} binaries")


def compare(before: Path, after: Path) -> int:
    """Print how much is the same; 1 if a binary differs in its instructions, or is in one file only."""
    a, b = (json.loads(path.read_text()) for path in (before, after))
    levels: dict[str, str] = {
        name: next((what for what, x, y in zip(SAME, a[name], b[name], strict=True) if x == y), "not even these")
        for name in a.keys() & b.keys()
    }
    for what, number in Counter(levels.values()).most_common():
        print(f"{number:5} binaries have the same: {what}")
    differ = sorted(name for name, what in levels.items() if what not in SAME)
    alone = sorted(a.keys() ^ b.keys())
    print("\n".join([*(f"differs: {name}" for name in differ), *(f"in one file only: {name}" for name in alone)]))
    return 1 if differ or alone else 0


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
    collect(sys.argv[1], Path(sys.argv[2]), float("inf") if "--all" in sys.argv else FEW)
