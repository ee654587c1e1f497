"""Times the tiles of attention's kernels on a GPU: microseconds a kernel, by a profiler.

python benchmarks/tune_attention.py [case ...] > benchmarks/results/<gpu>/tuning/attention_<what>.txt. Each field of the
plan in turn has each of its tiles (queries, keys, warps, stages); the others are the plan's own. The op's
`triton/plan.py` is written from such tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.bench.ahead import compile_programs
from retrograd.bench.kernels import kernel_times
from retrograd.bench.peers import Function
from retrograd.bench.run import gradients_like, own_function, results, wanted
from retrograd.core.arch import SUPPORTED
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.attention.arrays import columns
from retrograd.ops.attention.cases import bench
from retrograd.ops.attention.triton.plan import Plan, Tile
from retrograd.ops.infos import info
from retrograd.testing.draw import Arrays, draw, leaves

TileSizes = tuple[int, int, int, int]
KERNELS = {
    "queries": ("forward", "queries_backward"),
    "keys": ("keys_backward",),
    "pairs": ("bias_backward",),
}
TILES: dict[int, tuple[TileSizes, ...]] = {
    64: ((64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (128, 64, 4, 2), (64, 128, 8, 2)),
    128: ((64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (64, 128, 8, 2), (64, 64, 8, 2)),
    256: (
        (64, 64, 8, 2), (64, 32, 8, 2), (64, 32, 4, 2), (128, 32, 8, 2), (128, 64, 8, 1), (128, 64, 8, 2),
        (64, 64, 4, 1), (64, 64, 8, 1), (64, 128, 8, 1), (32, 64, 8, 2), (32, 64, 4, 2), (64, 64, 4, 2),
    ),
    512: (
        (64, 32, 8, 2), (64, 32, 8, 1), (64, 64, 8, 1), (32, 32, 8, 1), (32, 64, 8, 1), (16, 32, 8, 1), (16, 64, 8, 1),
        (32, 32, 4, 1),
    ),
}  # fmt: skip


def cases_of(names: list[str]) -> list[Case]:
    """The named cases, or those of heads wider than 128."""
    if names:
        return [info("attention").case(name) for name in names]
    return [bench(4, 4096, 8, D, mark="causal_", causal=True) for D in (256, 512)]


def variants(case: Case) -> Iterator[tuple[str, TileSizes]]:
    """The fields of the plan, and their tiles, that a case tries."""
    for field in ("queries", "keys", *(("pairs",) if "bias" in case.inputs else ())):
        for tile in TILES[max(64, columns(case.shape["D"]))]:
            yield field, tile


def with_tile(field: str, tile: TileSizes) -> OpInfo:
    """The op with another tile in its plan."""

    def replan(plan: Plan) -> Plan:
        return replace(plan, **{field: Tile(*tile)})

    return info("attention").variant(only="triton", replan=replan)


def compile_all(case: Case, variant: tuple[str, TileSizes]) -> None:
    """Compile the kernels of a variant, into the cache; what does not compile is reported when it is timed."""
    with suppress(Exception):  # some tiles have no program
        compile_programs(with_tile(*variant), case, SUPPORTED["sm_90"])


def main() -> None:
    cases = cases_of(sys.argv[1:])
    tried = [(case, variant) for case in cases for variant in variants(case)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_all, *zip(*tried, strict=True)))
    for case in cases:
        inputs = leaves(draw(case, "cuda", 0))

        def both(function: Function, inputs: Arrays = inputs) -> None:
            returned = results(function, inputs)
            torch.autograd.grad(returned, wanted(inputs), gradients_like(returned, 0))

        for field, tile in variants(case):
            try:
                times = kernel_times(partial(both, own_function(with_tile(field, tile), case)))
                cells = (f"{kernel} {times[kernel]:.0f} us" for kernel in KERNELS[field] if kernel in times)
                print(case.name, field, tile, *cells, flush=True)
            except Exception as error:
                print(case.name, field, tile, "does not run:", str(error).splitlines()[0][:90], flush=True)


if __name__ == "__main__":
    main()
