"""Times tiles of causal_conv1d's kernels on a GPU and prints a table for each pass and layout, fastest first.

python benchmarks/tune_causal_conv1d.py [OUT.jsonl] [--passes PASS ...] [--shape B T D]. `triton/plan.py` is written
from its tables. All cores compile the kernels first. Each tile's results are compared with float64 before it is
timed. It is first timed with one number of steps a program; the best ones then with others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from retrograd.bench.measure import device_ms, events_ms
from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.build import build
from retrograd.core.program import Layout, Program, dense
from retrograd.core.spec import Param, Pass
from retrograd.core.torch.launch import arch_of, prepare
from retrograd.ops.causal_conv1d import reference
from retrograd.ops.causal_conv1d.op import OP, Spec
from retrograd.ops.causal_conv1d.triton.plan import Plan, Vectors, Walk

Tile = Walk | Vectors
Shape = tuple[int, int, int]
SETS = 3
CHECKED = (2, 1032, 4096)  # rows and steps of the calls compared with float64; D as in the timed ones
WANTED = frozenset({"x", "weight"})
# By name: the pass, and the arrays that are contiguous in time. If there are any, tiles are `Vectors`.
PASSES: dict[str, tuple[Pass, tuple[str, ...]]] = {
    "forward": ("fwd", ()),
    "backward": ("bwd", ()),
    "forward, x transposed": ("fwd", ("x",)),
    "backward, x transposed": ("bwd", ("x",)),
    "backward, x and dy transposed": ("bwd", ("x", "dy")),
}


def tiles(which: Pass, in_time: tuple[str, ...]) -> Iterator[Tile]:
    """Candidate tiles, for two-byte elements."""
    if in_time:
        for channels, blocks, warps in product((32, 64, 128), (4, 8, 16), (2, 4, 8)):
            if 1 <= channels * blocks // (32 * warps) <= 4:
                yield Vectors(channels, blocks, 8, warps)
        return
    unrolls = (4, 8, 16) if which == "fwd" else (2, 4, 8)
    for channels, warps, each, unroll in product((128, 256, 512, 1024), (1, 2, 4, 8), (2, 4, 8), unrolls):
        lanes = each * 32 * warps // channels
        registers = unroll * each * (0.5 if which == "fwd" else 1.0)
        if 1 <= lanes <= 8 and registers <= 64 and unroll * each >= 16:
            yield Walk(lanes, channels, unroll, warps)
            if each == 8 and warps == 4 and unroll == 4:
                yield Walk(lanes, channels, unroll, warps, stages=3)


def walking(tile: Tile, spec: Spec, steps: int) -> Tile:
    """The tile with `steps` steps (or tiles) for each program."""
    if isinstance(tile, Walk):
        return replace(tile, parallel=max(1, spec.batch * spec.time * -(-spec.channels // tile.channels) // steps))
    each = -(-spec.time // (tile.blocks * tile.vector))
    return replace(tile, parallel=max(1, spec.batch * each * -(-spec.channels // tile.channels) // steps))


def spec_of(shape: Shape) -> Spec:
    params = {"x": Param(shape, "bfloat16"), "weight": Param((shape[2], 4), "bfloat16")}
    return OP.spec(params, {"activation": "silu"})


def layouts(shape: Shape, in_time: tuple[str, ...]) -> dict[str, Layout]:
    _, T, D = shape
    return {name: Layout((T * D, 1, T) if name in in_time else dense(shape)) for name in ("x", "dy")}


def program(name: str, shape: Shape, tile: Tile, arch: Arch) -> Program:
    """The program of a pass with a tile in place of the planned one."""
    which, in_time = PASSES[name]

    def replan(planned: Plan) -> Plan:
        return replace(planned, walk=tile) if isinstance(tile, Walk) else replace(planned, vectors=tile)

    op, spec = replace(OP, replan=replan), spec_of(shape)
    result = (op.forward(spec) if which == "fwd" else op.backward(spec, WANTED)).program(layouts(shape, in_time), arch)
    assert result is not None
    return result


def compile_one(job: tuple[str, int, Tile, str]) -> int:
    """Compile a tile's kernels into Triton's cache; returns the largest shared memory of a launch, -1 if it fails."""
    which, D, tile, name = job
    try:
        result = program(which, (8, 4096, D), tile, SUPPORTED[name])
        return max(build(launch, result.arrays, SUPPORTED[name]).metadata.shared for launch in result.launches)
    except Exception as error:
        return int(print(f"{which} {tile}: {error}") or -1)


def drawn(which: str, shape: Shape, seed: int) -> dict[str, Tensor]:
    """x, weight and dy in the pass's layouts."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16)

    arrays = {"x": normal(*shape), "weight": normal(shape[2], 4) * 0.5, "dy": normal(*shape)}
    for name in PASSES[which][1]:
        arrays[name] = arrays[name].transpose(1, 2).contiguous().transpose(1, 2)
    return arrays


def expected(which: str, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The pass's results in float64."""
    x, weight, dy = (arrays[name].double().requires_grad_() for name in ("x", "weight", "dy"))
    y = reference.causal_conv1d(x, weight, activation="silu")
    assert isinstance(y, Tensor)
    if PASSES[which][0] == "fwd":
        return {"y": y.detach()}
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    return {"dx": dx, "dweight": dweight}


def runner(program: Program, device: torch.device, arch: Arch) -> Any:
    return prepare(program, [a.name for a in program.inputs], [a.name for a in program.outputs], arch, device)


def inputs_of(program: Program, arrays: Mapping[str, Tensor]) -> list[Tensor]:
    return [arrays[a.name] for a in program.inputs]


def error(program: Program, results: list[Tensor], exact: Mapping[str, Tensor]) -> float:
    """The largest relative error of the results, in the Euclidean norm."""
    named = zip((a.name for a in program.outputs), results, strict=True)
    return max(float((r.double() - exact[name]).norm() / exact[name].norm()) for name, r in named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--passes", nargs="*", default=list(PASSES), choices=list(PASSES))
    parser.add_argument("--shape", type=int, nargs=3, default=(8, 4096, 4096))
    parser.add_argument("--seconds", type=float, default=110, help="stop trying further tiles after this time")
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    began = time.perf_counter()
    shape: Shape = tuple(options.shape)

    jobs = [(w, shape[2], t, options.arch) for w in options.passes for t in dict.fromkeys(tiles(*PASSES[w]))]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        shared = list(pool.map(compile_one, jobs, chunksize=1))
    print(f"compiled {len(jobs)} tiles in {time.perf_counter() - began:.0f} s", flush=True)

    device = torch.device("cuda", torch.cuda.current_device())
    arch = arch_of(device)
    assert arch is not None
    source = torch.empty(2**30, dtype=torch.uint8, device=device).random_()
    copy_ms = events_ms([partial(torch.empty_like(source).copy_, source)])
    copy = 2 * 2**30 / copy_ms / 1e6
    print(f"copy {copy:.0f} GB/s", flush=True)
    del source

    fits = {(w, t) for (w, _, t, _), s in zip(jobs, shared, strict=True) if 0 <= s <= arch.shared_memory}
    share = (options.seconds - (time.perf_counter() - began)) / len(options.passes)
    for which in options.passes:
        tune(which, shape, [t for w, _, t, _ in jobs if w == which and (w, t) in fits], copy, share, options.out, arch)


def tune(
    which: str, shape: Shape, tiles: list[Tile], copy: float, seconds: float, out: Path | None, arch: Arch
) -> None:
    """Time the tiles of one pass and print the fastest."""
    began = time.perf_counter()
    device = torch.device("cuda", torch.cuda.current_device())
    spec = spec_of(shape)
    forward, in_tiles = PASSES[which][0] == "fwd", bool(PASSES[which][1])
    small = (CHECKED[0], CHECKED[1], shape[2])
    checked = drawn(which, small, 1)
    exact = expected(which, checked)
    sets = [drawn(which, shape, seed) for seed in range(SETS)]
    moved = spec.bytes_moved("fwd" if forward else "bwd")
    rows: list[tuple[float, Tile, int, int, float]] = []

    def measure(tile: Tile, steps: int) -> None:
        tile = walking(tile, spec, steps)
        candidate = program(which, shape, tile, arch)
        run = runner(candidate, device, arch)
        compiled = build(candidate.launches[0], candidate.arrays, arch, device.index)
        if compiled.n_spills:
            return
        tried = program(which, small, tile, arch)
        wrong = error(tried, runner(tried, device, arch)(inputs_of(tried, checked)), exact)
        if not wrong < 0.004:
            print(f"WRONG {which} {tile}: error {wrong:.2g}", flush=True)
            return
        ms = device_ms([partial(run, inputs_of(candidate, arrays)) for arrays in sets], repeats=5)
        rows.append((ms, tile, steps, compiled.n_regs, wrong))
        if out:
            row = {"pass": which, "shape": shape, "tile": astuple(tile), "steps": steps, "registers": compiled.n_regs}
            with out.open("a") as file:
                file.write(json.dumps({**row, "ms": ms, "gbps": moved / ms / 1e6}) + "\n")

    first, others = (
        (4, (1, 2, 8, 16)) if in_tiles else (128, (64, 256, 512)) if forward else (256, (64, 128, 512, 1024))
    )
    for i, tile in enumerate(tiles):
        if time.perf_counter() - began > 0.7 * seconds:
            print(f"out of time after {i} of {len(tiles)} tiles", flush=True)
            break
        measure(tile, first)
    for _, tile, _, _, _ in sorted(rows, key=lambda row: row[0])[:6]:
        for steps in others:
            measure(tile, steps)

    best = sorted(rows, key=lambda row: row[0])
    names = "channels blocks vector warps parallel" if in_tiles else "lanes channels unroll warps stages parallel"
    print(f"\n{which} {shape} bf16 silu: {len(rows)} measured, worst error {max(r[4] for r in rows):.2g}")
    print(f"    us   GB/s  of copy  steps  registers  ({names})")
    for ms, tile, steps, registers, _ in best[:14] + best[14::8]:
        gbps = moved / ms / 1e6
        print(f"{ms * 1e3:7.1f} {gbps:6.0f} {gbps / copy:8.1%} {steps:6} {registers:10}  {astuple(tile)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
