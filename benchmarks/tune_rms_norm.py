"""Times tiles of rms_norm's kernels on a GPU and prints, for each N, those that are best over all numbers of rows.

python benchmarks/tune_rms_norm.py OUT.jsonl [forward|backward ...]. `plan.py` is written from its table. All cores
compile the kernels first. `--near FILE` only times the tiles that were near the best in an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from triton import next_power_of_2

from retrograd.bench.measure import device_ms, input_sets
from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.build import build
from retrograd.core.program import Program
from retrograd.core.spec import Param
from retrograd.core.torch.launch import DTYPES, arch_of, prepare
from retrograd.ops.rms_norm.op import OP
from retrograd.ops.rms_norm.triton import plan

ROWS = (4096, 8192, 16384, 32768, 65536)
COLUMNS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PROGRAMS = (132, 256, 264, 512, 528, 1024, 1056, 2112)
UNBOUNDED = 2**31 - 1
NEAR = 1.06  # times the best time
Shape = tuple[int, int, int]  # rows, warps, stages


def shapes(which: str, N: int) -> Iterator[Shape]:
    """Candidate tile shapes: 4 to 32 elements a thread."""
    columns = next_power_of_2(N)
    for warps, each, stages in product((1, 2, 4, 8, 16, 32), (4, 8, 16, 32), (1, 2, 3, 4)):
        elements = warps * 32 * each
        if which == "forward" and stages > 1:
            continue
        if columns <= elements <= max(2 * columns, 16384):
            yield elements // columns, warps, stages


def near(path: Path) -> dict[tuple[str, int], set[Shape]]:
    """For each pass and N, the tile shapes that were near the best for some number of rows."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        groups[row["which"], row["N"], row["M"]].append(row)
    kept: dict[tuple[str, int], set[Shape]] = defaultdict(set)
    for (which, N, _), rows in groups.items():
        best = min(row["ms"] for row in rows)
        kept[which, N] |= {(r["rows"], r["warps"], r["stages"]) for r in rows if r["ms"] < NEAR * best}
    return kept


def spec_of(kind: str, M: int, N: int) -> Any:
    x = Param((M, N), "bfloat16")
    residual, gate = (x if kind == name else None for name in ("prenorm", "gated"))
    params = {"x": x, "weight": Param((N,), "float32"), "residual": residual, "gate": gate}
    return OP.spec(params, {"prenorm": kind == "prenorm"})


def program(kind: str, which: str, M: int, N: int, tile: plan.Tile, arch: Arch) -> Program:
    """A pass of the Triton kernels that hold rows in registers, with another tile."""
    op = replace(OP.only("triton"), replan=lambda planned: replace(planned, whole=True, tile=tile, means=None))
    spec = spec_of(kind, M, N)
    call = op.forward(spec) if which == "forward" else op.backward(spec, frozenset(op.arguments))
    result = call.program({}, arch)
    assert result is not None
    return result


def compile_one(job: tuple[str, str, int, Shape, str]) -> tuple[str, int, Shape, int]:
    """Compile a tile's kernels into Triton's cache; returns the job and its shared memory."""
    kind, which, N, (rows, warps, stages), name = job
    shared = 0
    for programs in (1, 132, 256, 512, 1024, 2048):  # the second stage's tile depends on the number of programs
        result = program(
            kind, which, 65536, N, plan.Tile(rows, next_power_of_2(N), warps, stages, programs), SUPPORTED[name]
        )
        for launch in result.launches:
            shared = max(shared, build(launch, result.arrays, SUPPORTED[name]).metadata.shared)
    return which, N, (rows, warps, stages), shared


def inputs(program: Program) -> list[torch.Tensor]:
    return [
        torch.rand(a.shape, device="cuda")
        if a.name == "rstd"
        else torch.randn(a.shape, device="cuda").to(DTYPES[a.dtype])
        for a in program.inputs
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("which", nargs="*", default=["forward", "backward"])
    parser.add_argument("--columns", type=int, nargs="*", default=COLUMNS)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--near", type=Path)
    parser.add_argument("--kind", choices=("plain", "prenorm", "gated"), default="plain")
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    arch = arch_of(device)
    assert arch is not None
    known = near(options.near) if options.near else {}

    jobs = [
        (options.kind, which, N, shape, arch.name)
        for which, N in product(options.which, options.columns)
        for shape in sorted(known.get((which, N), set(shapes(which, N))))
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        built = [job for job in pool.map(compile_one, jobs) if job[3] <= arch.shared_memory]
    print(f"compiled {len(jobs)} tiles", flush=True)

    for which, N in product(options.which, options.columns):
        times: dict[tuple[Shape, int], dict[int, float]] = defaultdict(dict)
        for M in options.rows:
            if M * N > 2**29:
                continue
            moved = spec_of(options.kind, M, N).bytes_moved(
                "fwd" if which == "forward" else "bwd", options.kind == "prenorm"
            )
            sets = [
                inputs(program(options.kind, which, M, N, plan.Tile(1, N, 4, 1, 1), arch))
                for _ in range(input_sets(moved))
            ]
            for w, n, shape, _ in built:
                if (w, n) != (which, N):
                    continue
                bounded = [p for p in PROGRAMS if p * shape[1] <= 16 * 528]
                for programs in bounded if which == "backward" else [UNBOUNDED]:
                    tile = plan.Tile(shape[0], next_power_of_2(N), shape[1], shape[2], programs)
                    candidate = program(options.kind, which, M, N, tile, arch)
                    names = [a.name for a in candidate.inputs]
                    run = prepare(candidate, names, [a.name for a in candidate.outputs], arch, device)
                    compiled = build(candidate.launches[0], candidate.arrays, arch, device.index)
                    if compiled.n_spills:
                        break
                    ms = device_ms([partial(run, s) for s in sets], repeats=5)
                    times[shape, programs][M] = ms
                    row = {"kind": options.kind, "which": which, "M": M, "N": N, "rows": shape[0], "warps": shape[1],
                           "stages": shape[2], "programs": programs,
                           "regs": compiled.n_regs, "ms": ms, "gbps": moved / ms / 1e6}  # fmt: skip
                    with options.out.open("a") as out:
                        out.write(json.dumps(row) + "\n")
        report(f"{options.kind} {which}", N, times)


def report(which: str, N: int, times: dict[tuple[Shape, int], dict[int, float]]) -> None:
    """Print the tiles nearest to the best at their worst number of rows, with microseconds for each number of rows."""
    best: dict[int, float] = defaultdict(lambda: float("inf"))
    for by_rows in times.values():
        for M, ms in by_rows.items():
            best[M] = min(best[M], ms)
    whole = {k: v for k, v in times.items() if len(v) == len(best)}
    worst = {k: max(v[M] / best[M] for M in best) for k, v in whole.items()}
    print(which, N, "best us", {M: round(ms * 1e3, 2) for M, ms in best.items()})
    for key in sorted(whole, key=lambda k: worst[k])[:5]:
        print(f"  {worst[key]:.3f} {key}", [round(ms * 1e3, 2) for ms in whole[key].values()], flush=True)


if __name__ == "__main__":
    main()
