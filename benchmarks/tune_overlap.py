"""Kernels that overlap the kernel before them (docs/design.md) against the same ones that do not, on a GPU.

    python benchmarks/tune_overlap.py [op ...]

Forward passes one after another, then forward and backward passes in turns, as in training; ms with overlap and
without, and the quotient. A short call's passes in turns wait for the host. It needs Triton 3.6, whose launches say
whether they overlap.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from retrograd.bench.peers import native
from retrograd.bench.run import gradients_like, own_function, results, wanted
from retrograd.bench.selection import bench_cases
from retrograd.core.torch import launch
from retrograd.ops.infos import info
from retrograd.testing.draw import draw, leaves

OPS = ("selective_scan", "ssd", "linear_scan", "causal_conv1d", "rms_norm", "attention")
OVERLAPS = 2  # the place among a launch's arguments
MS, ROUNDS = 15, 3

overlapping: list[list[Any]] = []  # the arguments of all launches that overlap
started = launch.launcher


def noted(compiled: Any) -> tuple[Any, list[Any], list[Any]]:
    """`launch.launcher`, which notes those that overlap."""
    start, first, then = started(compiled)
    if first[OVERLAPS]:
        overlapping.append(first)
    return start, first, then


def timed(call: Callable[[], Any], count: int) -> float:
    """Milliseconds of a call, of several that are queued."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(2_000_000)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def compared(call: Callable[[], Any]) -> str:
    """With overlap, without it, and the quotient."""
    call()
    call()
    count = max(3, min(100, int(MS / timed(call, 3))))
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for overlaps, found in times.items():
            for arguments in overlapping:
                arguments[OVERLAPS] = overlaps
            found.append(timed(call, count))
    for arguments in overlapping:
        arguments[OVERLAPS] = True
    with_overlap, without = (statistics.median(found) for found in times.values())
    return f"{with_overlap:9.4f} {without:9.4f} {with_overlap / without:6.3f}"


def main() -> None:
    launch.launcher = noted
    for name in sys.argv[1:] or OPS:
        op = info(name)
        for case in bench_cases(op):
            function, inputs = native(own_function(op, case)).call, leaves(draw(case, "cuda", 0))
            gradients = gradients_like(results(function, inputs), 0)

            def forward(function: Any = function, inputs: Any = inputs) -> None:
                with torch.no_grad():
                    function(inputs)

            def both(function: Any = function, inputs: Any = inputs, gradients: Any = gradients) -> None:
                torch.autograd.grad(results(function, inputs), wanted(inputs), gradients)

            print(f"{name:15} {case.name:48} forward {compared(forward)}  both {compared(both)}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
