"""Times tiles of linear_scan's kernels on a GPU: a table for each shape and pass, for `triton/plan.py` to choose from.

python benchmarks/tune_linear_scan.py [forward|backward ...] [--seconds S]. All cores compile the kernels first. A
tile is timed only if it is right: every result agrees with the default plan's, that with float64, and two runs are
bitwise equal. The default plan is also compared bitwise with the plan of three kernels.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from retrograd.bench.measure import device_ms, input_sets, replay_ms
from retrograd.core.arch import SUPPORTED, Arch
from retrograd.core.build import build
from retrograd.core.op import Call, Op
from retrograd.core.program import Program
from retrograd.core.spec import Param
from retrograd.core.torch.launch import arch_of, prepare
from retrograd.core.torch.xp import torch_namespace
from retrograd.ops.linear_scan.op import OP, Spec
from retrograd.ops.linear_scan.triton.plan import Plan, Tile

SHAPES = ((8, 4096, 2048), (1, 65536, 1536), (1, 1 << 20, 64))
TILES = {  # steps, log2 of the rows, channels; the default first
    "forward": (
        (32, 4, 16), (32, 3, 16), (16, 4, 16), (64, 3, 16), (64, 4, 8), (32, 4, 8), (32, 5, 8), (16, 5, 16),
        (32, 3, 32), (16, 4, 32), (24, 4, 16), (64, 3, 8), (48, 3, 16), (16, 5, 8),
    ),
    "backward": (
        (16, 4, 16), (16, 3, 16), (8, 4, 16), (32, 3, 16), (32, 4, 8), (16, 4, 8), (16, 5, 8), (8, 5, 16),
        (16, 3, 32), (8, 4, 32), (24, 3, 16), (24, 4, 8), (12, 4, 16), (32, 3, 8),
    ),
}  # fmt: skip
CURVE = tuple(2**i for i in range(5, 17))
TOLERANCE = 2e-5  # of the largest value, in fp32
WANTED = frozenset({"a", "b"})


def spec_of(shape: tuple[int, int, int], dtype: str = "float32") -> Spec:
    spec: Spec = OP.spec({"a": Param(shape, dtype), "b": Param(shape, dtype)}, {})
    return spec


def call_of(which: str, spec: Spec, op: Op = OP) -> Call:
    return op.forward(spec) if which == "forward" else op.backward(spec, WANTED)


def program(which: str, shape: tuple[int, int, int], tile: Tile, arch: Arch, one_pass: bool = True) -> Program:
    op = replace(OP, replan=lambda _: Plan(tile, one_pass))
    result = call_of(which, spec_of(shape), op).program({}, arch)
    assert result is not None
    return result


def compile_one(job: tuple[str, tuple[int, int, int], Tile, bool, str]) -> None:
    """Compile a tile's kernels into Triton's cache."""
    which, shape, tile, one_pass, name = job
    result = program(which, shape, tile, SUPPORTED[name], one_pass)
    for launch in result.launches:
        build(launch, result.arrays, SUPPORTED[name])


def draw(names: tuple[str, ...], shape: tuple[int, int, int]) -> list[torch.Tensor]:
    """New random inputs; h may have any values of its size."""
    return [
        torch.sigmoid(torch.randn(shape, device="cuda") + 1.5) if n == "a" else torch.randn(shape, device="cuda")
        for n in names
    ]


def exact(which: str, shape: tuple[int, int, int], inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The portable path in float64."""
    results = call_of(which, spec_of(shape, "float64")).portable(
        torch_namespace(), {name: tensor.double() for name, tensor in inputs.items()}
    )
    return {name: tensor.float() for name, tensor in results.items()}


def off(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, as a share of the largest value; NaN counts."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", default=["forward", "backward"])
    parser.add_argument("--seconds", type=float, default=110, help="stop after this time")
    parser.add_argument("--arch", default="sm_90", help="architecture that the kernels are compiled for first")
    options = parser.parse_args()
    began = time.perf_counter()

    jobs = [
        (which, shape, Tile(*tile), one_pass, options.arch)
        for which in options.which
        for shape in SHAPES
        for tile in TILES[which]
        for one_pass in ((True, False) if tile == TILES[which][0] else (True,))
    ]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 32)) as pool:
        list(pool.map(compile_one, jobs))
    print(f"compiled {len(jobs)} programs, {time.perf_counter() - began:.0f} s", flush=True)

    device = torch.device("cuda", torch.cuda.current_device())
    arch = arch_of(device)
    assert arch is not None
    source = torch.empty(2**30, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    copy_gbps = 2 * 2**30 / replay_ms(partial(target.copy_, source)) / 1e6
    print(f"copy {copy_gbps:.0f} GB/s", flush=True)
    del source, target

    for shape in SHAPES:
        for which in options.which:
            tune(which, shape, arch, device, copy_gbps, began + options.seconds)
    for T in CURVE:
        for which in options.which:
            if time.perf_counter() < began + options.seconds:
                timed(which, (8, T, 2048), Tile(*TILES[which][0]), arch, device, copy_gbps, "curve")
    print(f"{time.perf_counter() - began:.0f} s", flush=True)


def runner(
    which: str, shape: tuple[int, int, int], tile: Tile, arch: Arch, device: torch.device, one_pass: bool
) -> Any:
    result = program(which, shape, tile, arch, one_pass)
    run = prepare(result, [a.name for a in result.inputs], [a.name for a in result.outputs], arch, device)
    compiled = build(result.launches[-1], result.arrays, arch, device.index)
    return run, compiled


def tune(
    which: str, shape: tuple[int, int, int], arch: Arch, device: torch.device, copy_gbps: float, until: float
) -> None:
    """Print the table of one shape and pass."""
    names = call_of(which, spec_of(shape)).inputs
    inputs = draw(names, shape)
    default = Tile(*TILES[which][0])
    expected = runner(which, shape, default, arch, device, True)[0](inputs)
    torch.cuda.synchronize()
    true = exact(which, shape, dict(zip(names, inputs, strict=True)))
    error = off(expected, [true[a.name] for a in call_of(which, spec_of(shape)).outputs])
    del true
    three = runner(which, shape, default, arch, device, False)[0](inputs)
    equal = all(torch.equal(a, b) for a, b in zip(expected, three, strict=True))
    print(f"{which} {shape}: error of the default {error:.1e}; three kernels give the same bits: {equal}", flush=True)
    del three
    if not error < TOLERANCE:
        print("  WRONG", flush=True)
        return
    for numbers in TILES[which]:
        if time.perf_counter() > until:
            print("  out of time", flush=True)
            return
        tile = Tile(*numbers)
        run, _ = runner(which, shape, tile, arch, device, True)
        first, second = run(inputs), run(inputs)
        difference = off(first, expected)
        repeats = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        del first, second
        if not (difference < TOLERANCE and repeats):
            print(f"  {numbers} WRONG: off by {difference:.1e}, repeats: {repeats}", flush=True)
            continue
        timed(which, shape, tile, arch, device, copy_gbps, "")
    timed(which, shape, default, arch, device, copy_gbps, "three kernels", one_pass=False)


def timed(
    which: str,
    shape: tuple[int, int, int],
    tile: Tile,
    arch: Arch,
    device: torch.device,
    copy_gbps: float,
    note: str,
    one_pass: bool = True,
) -> None:
    """Print one line: time, bandwidth and its share of a copy's, registers and spills."""
    run, compiled = runner(which, shape, tile, arch, device, one_pass)
    moved = spec_of(shape).bytes_moved("fwd" if which == "forward" else "bwd")
    names = call_of(which, spec_of(shape)).inputs
    sets = [draw(names, shape) for _ in range(min(input_sets(moved), 9))]
    ms = device_ms([partial(run, one) for one in sets], repeats=5)
    gbps = moved / ms / 1e6
    print(
        f"  {which} {shape} steps {tile.steps} rows {tile.rows} channels {tile.channels}: {ms * 1e3:8.1f} us"
        f" {gbps:6.0f} GB/s {gbps / copy_gbps:6.1%}  {compiled.n_regs} registers, {compiled.n_spills} spills {note}",
        flush=True,
    )


if __name__ == "__main__":
    main()
