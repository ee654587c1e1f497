"""Compile ahead, without a GPU, the kernels that the contract launches on one: the larger part of its time there.

    python tests/fill_cache.py OUT.tar.xz [--arch sm_90] [--at /tmp/cache] [--python PYTHON] [--jobs 2] [--ops a,b]

The archive is unpacked at `/` of the GPU machine, where TRITON_CACHE_DIR names `--at`. Triton's keys depend on its
build for a version of Python: `--python` is one like that machine's, with the same Triton, where this one is another.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton.runtime.cache as triton_cache
from checks import contract, generation, programs
from checks.layouts import layouts_of
from checks.parts import batch_size, is_packed

from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.build import build
from retrograd.core.program import Array, Launch, Program, dense
from retrograd.core.torch.launch import DTYPES, Launcher, Runner
from retrograd.core.torch.passes import Launchers
from retrograd.opinfo import cases
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import info
from retrograd.ops.names import NAMES
from retrograd.testing import draw

LARGE = 2**31  # bytes of inputs, of which only the plain call is planned
KEPT = (".json", ".cubin", ".ptx")  # of what is stored for a binary; and the code that XLA's launcher asks for
KEY = "from triton.runtime.cache import triton_key; print(triton_key())"

Job = tuple[Launch, dict[str, Array]]


class Recorder(Launcher):
    """Notes launches, one of each binary, and returns tensors that nothing has written."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.jobs: dict[Any, Job] = {}

    def arch_of(self, device: torch.device) -> Arch:
        """The architecture for which programs are planned."""
        return self.arch

    def begin(self, programs: Sequence[Program], arch: Arch, device: torch.device) -> None:
        """Nothing is compiled yet."""

    def prepare(
        self, program: Program, inputs: Sequence[str], outputs: Sequence[str | None], arch: Arch, device: torch.device
    ) -> Runner:
        """A function that returns the outputs without running anything."""
        for launch in program.launches:
            if launch.grid:
                key = (*programs.binary(program, launch), launch.max_registers, launch.thread_wise)
                self.jobs.setdefault(key, (launch, program.arrays))
        kept = {array.name: array for array in program.returned}

        def tensor(array: Array) -> torch.Tensor:
            return torch.empty_strided(array.shape, dense(array.shape), dtype=DTYPES[array.dtype])

        return lambda _: [tensor(kept[name]) if name in kept else None for name in outputs]


def unwritten(tensor: cases.Tensor, _: Any) -> torch.Tensor:
    """An input whose numbers do not matter."""
    dtype = DTYPES[tensor.dtype]
    if tensor.values is not None:
        return torch.tensor(tensor.values, dtype=dtype).reshape(tensor.shape)
    return torch.empty(tensor.shape, dtype=dtype)


def nothing(*_: Any, **__: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """In place of the checks and of what they compare with."""
    return {}, {}


def collect(one: OpInfo) -> None:
    """Make the calls of the contract."""
    one = replace(one, reference=one.torch, plain=None)
    for case in one.tagged("test", "gpu"):
        for check, arguments in calls(one, case):
            with suppress(AssertionError, ValueError, RuntimeError):  # what is compared was never computed
                check(one, case, "cpu", 0, *arguments)


def calls(one: OpInfo, case: Case) -> list[tuple[Any, tuple[Any, ...]]]:
    """The checks of the contract that apply to a case, with their other arguments."""
    found: list[tuple[Any, tuple[Any, ...]]] = [(contract.check_repeats, ())]
    if sum(4 * torch.Size(tensor.shape).numel() for tensor in case.inputs.values()) > LARGE:
        return found
    wanted = {
        contract.check_batch_invariance: True,
        contract.check_packed: is_packed(case),
        contract.check_state_passing: contract.passes_state(one, case),
        contract.check_structures: bool(one.structures),
        generation.check_prefix: generation.has_prefixes(one, case),
        generation.check_continue: generation.can_be_cut(one, case),
        generation.check_step: generation.has_step(one, case),
    }
    found += [(check, ()) for check, applies in wanted.items() if applies]
    for layout in layouts_of(one, case):
        found.append((lambda o, c, device, seed, of: contract.check_layout(o, c, of, device, seed), (layout,)))
        if batch_size(one, case):
            found.append((contract.check_batch_invariance, (layout,)))
    return found


def recorded(arch: Arch, ops: Sequence[str]) -> list[Job]:
    """The launches of all these calls, one of each binary."""
    recorder = Recorder(arch)
    with ExitStack() as patches:
        patches.enter_context(patch.object(Launchers, "current", recorder))
        patches.enter_context(patch.object(draw, "draw_one", unwritten))
        patches.enter_context(patch.object(draw, "normal_as", lambda shape, dtype, _: torch.empty(shape, dtype=dtype)))
        for module in (contract, generation):
            patches.enter_context(patch.object(module, "assert_same_bits", nothing))
            patches.enter_context(patch.object(module, "poisoned", nullcontext))
        for name in ("assert_within_budget", "plain_and_exact", "plant_nan"):
            patches.enter_context(patch.object(contract, name, nothing))
        for op in ops:
            before = len(recorder.jobs)
            collect(info(op))
            print(f"{op}: {len(recorder.jobs) - before} binaries", flush=True)
    return list(recorder.jobs.values())


def compile_all(jobs: Sequence[Job], arch: Arch) -> None:
    """Compile launches into Triton's cache."""
    for launch, arrays in jobs:
        build(launch, arrays, arch)


def pack(folder: Path, out: Path) -> None:
    """Write what a launch needs of the binaries into an archive."""
    files: list[tuple[Path, bytes]] = []
    for group in folder.glob("*/__grp__*"):
        paths = json.loads(group.read_text())["child_paths"]
        intermediate = ".ttir" if any(name.endswith(".ttir") for name in paths) else ".ttgir"  # Gluon has no TTIR
        kept = {name: path for name, path in paths.items() if Path(name).suffix in (*KEPT, intermediate)}
        files.append((group, json.dumps({"child_paths": kept}).encode()))
        files += [(Path(path), Path(path).read_bytes()) for path in kept.values()]
    # Alike files side by side are packed best.
    with lzma.open(out, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in sorted(files, key=lambda file: (file[0].suffix, file[0].name, file[0])):
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    print(f"{out}: {out.stat().st_size >> 20} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", default="sm_90", choices=SUPPORTED)
    parser.add_argument("--at", type=Path, default=Path("/tmp/retrograd_cache"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--ops", default=",".join(NAMES))
    options = parser.parse_args()
    key = subprocess.run([options.python, "-c", KEY], capture_output=True, text=True, check=True).stdout.strip()
    triton_cache.triton_key = lambda: key
    os.environ["TRITON_CACHE_DIR"] = str(options.at)
    torch.set_num_threads(1)
    arch = SUPPORTED[options.arch]
    jobs = recorded(arch, options.ops.split(","))
    fork = get_context("fork")
    processes = [fork.Process(target=compile_all, args=(jobs[n :: options.jobs], arch)) for n in range(options.jobs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    pack(options.at, options.out)
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
