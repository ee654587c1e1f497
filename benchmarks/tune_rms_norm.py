"""Times every sensible tile of rms_norm's kernels and prints the table that `plan.py` is written from.

python benchmarks/tune_rms_norm.py OUT.jsonl [forward|backward ...]; needs a GPU. Kernels are compiled by all cores first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from retrograd.bench.measure import device_ms, input_sets
from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.build import build
from retrograd.core.program import Program
from retrograd.core.torch_launch import DTYPES, arch_of, prepare
from retrograd.ops.rms_norm import plan, schedule
from retrograd.ops.rms_norm.spec import Param, Spec

ROWS = (4096, 16384, 65536)
COLUMNS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
UNBOUNDED = 2**31 - 1


def candidates(which: str, N: int) -> Iterator[plan.Tile]:
    columns = plan.power_of_two(N)
    for warps, each, stages in product((1, 2, 4, 8, 16, 32), (4, 8, 16, 32), (1, 2, 3, 4)):
        elements = warps * 32 * each
        if elements < columns or elements > max(2 * columns, 8192) or each < 8 and columns > 256:
            continue
        if which == "forward":
            programs = (UNBOUNDED, 2112) if stages == 1 else (1056, 528, 264, 132)
        else:
            programs = (1056, 528, 264, 132)
        for count in programs:
            if count * warps <= 16 * 528 or count == UNBOUNDED:
                yield plan.Tile(elements // columns, columns, warps, stages, count)


def program(which: str, M: int, N: int, tile: plan.Tile, arch: Arch) -> Program:
    spec = Spec(Param((M, N), "bfloat16"), Param((N,), "float32"))
    with mock.patch.object(plan, which, lambda spec, arch: tile):
        if which == "forward":
            return schedule.forward(spec, {}, arch)
        return schedule.backward(spec, {}, arch, prenorm=False, parameters=True)


def compile_one(job: tuple[str, int, plan.Tile, str]) -> None:
    which, N, tile, name = job
    made = program(which, 4096, N, tile, SUPPORTED[name])
    for launch in made.launches:
        build(launch, made.arrays, SUPPORTED[name])


def inputs(made: Program) -> list[torch.Tensor]:
    return [
        torch.randn(a.shape, device="cuda", dtype=torch.float32).to(DTYPES[a.dtype])
        if a.name != "rstd"
        else torch.rand(a.shape, device="cuda")
        for a in made.inputs
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("which", nargs="*", default=["forward", "backward"])
    parser.add_argument("--columns", type=int, nargs="*", default=COLUMNS)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    arch = arch_of(device)
    assert arch is not None

    jobs = {
        (which, N, plan.Tile(t.rows, t.columns, t.num_warps, t.stages, 1), arch.name)
        for which in options.which
        for N in options.columns
        for t in candidates(which, N)
    }
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sorted(jobs, key=str)))
    print(f"compiled {len(jobs)} tiles", flush=True)

    with options.out.open("a") as out:
        for which, N, M in product(options.which, options.columns, options.rows):
            if M * N > 2**29:
                continue
            moved = Spec(Param((M, N), "bfloat16"), Param((N,), "float32")).bytes_moved(
                "fwd" if which == "forward" else "bwd"
            )
            first = next(candidates(which, N))
            sets = [inputs(program(which, M, N, first, arch)) for _ in range(input_sets(moved))]
            found = []
            for tile in candidates(which, N):
                made = program(which, M, N, tile, arch)
                run = prepare(made, [a.name for a in made.inputs], arch, device)
                compiled = build(made.launches[0], made.arrays, arch, device.index)
                if compiled.n_spills:
                    continue
                ms = device_ms([lambda s=s: run(s) for s in sets], repeats=5)
                row = dict(which=which, M=M, N=N, rows=tile.rows, warps=tile.num_warps, stages=tile.stages,
                           programs=tile.programs, regs=compiled.n_regs, ms=ms, gbps=moved / ms / 1e6)  # fmt: skip
                found.append(row)
                out.write(json.dumps(row) + "\n")
            out.flush()
            best = sorted(found, key=lambda r: r["ms"])[:3]
            print(which, M, N, *(
                f"| {b['gbps']:.0f} rows {b['rows']} warps {b['warps']} stages {b['stages']} programs {b['programs']}"
                for b in best), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
