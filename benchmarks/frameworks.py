"""Compares an op in PyTorch and in JAX by the same measure: the time during which its kernels run on the device.

python benchmarks/frameworks.py OP OUT.jsonl [CASE ...], with patterns of names of cases. Both run in one process on the
same inputs, and one profiler (Kineto, by torch.profiler) records all their kernels. Gaps between kernels do not count,
and the time of overlapping kernels counts once: PyTorch starts a kernel while the previous one drains, XLA does not.
Rows have `"timing": "kernels"`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from retrograd.bench import run_jax
from retrograd.bench.ahead import compile_ahead
from retrograd.bench.environment import stamp
from retrograd.bench.limits import measure
from retrograd.bench.measure import GPU_CLOCK, Timing
from retrograd.bench.peers import Peer
from retrograd.bench.record import Record
from retrograd.bench.results import append
from retrograd.bench.run import gradients_like, own_function, results, wanted
from retrograd.bench.selection import bench_cases, sets_for, sparse
from retrograd.core.torch.launch import arch_of
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo, Pass
from retrograd.ops.infos import info
from retrograd.testing.draw import draw, leaves

ROUNDS = 5


def kernels_ms(run: Callable[[], Any]) -> float:
    """Median over rounds of the time during which kernels that `run` starts are on the device, in milliseconds."""
    run()
    torch.cuda.synchronize()
    rounds = []
    for _ in range(ROUNDS):
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            run()
            torch.cuda.synchronize()
        ranges = (event.time_range for event in recorded.events() if event.device_type == DeviceType.CUDA)
        rounds.append(covered([(one.start, one.end) for one in ranges]) / 1e3)
    return statistics.median(rounds)


def covered(intervals: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def in_torch(op: OpInfo, case: Case, sets: list[dict[str, torch.Tensor]]) -> dict[Pass, Callable[[], Any]]:
    function = own_function(op, case)
    outputs = [results(function, inputs) for inputs in sets]
    arguments_of_grad = [
        (y, wanted(x), gradients_like(y, seed)) for seed, (y, x) in enumerate(zip(outputs, sets, strict=True))
    ]

    def forward() -> list[Any]:
        with torch.no_grad():
            return [function(inputs) for inputs in sets]

    def backward() -> list[Any]:
        return [torch.autograd.grad(*arguments, retain_graph=True) for arguments in arguments_of_grad]

    return {"fwd": forward, "bwd": backward}


def in_jax(op: OpInfo, case: Case, sets: list[dict[str, torch.Tensor]]) -> dict[Pass, Callable[[], Any]]:
    function = run_jax.own_function(op, case)
    shared = [{name: jax.dlpack.from_dlpack(x.detach()) for name, x in inputs.items()} for inputs in sets]
    forward = jax.jit(run_jax.in_order(function))
    backward = jax.jit(run_jax.in_order(run_jax.pull_back))
    with_pulls = jax.jit(run_jax.in_order(partial(run_jax.vjp, function)))(shared)
    pairs = [(pull, run_jax.gradients_like(outputs, seed)) for seed, (outputs, pull) in enumerate(with_pulls)]
    return {
        "fwd": lambda: jax.block_until_ready(forward(shared)),
        "bwd": lambda: jax.block_until_ready(backward(pairs)),
    }


def main() -> None:
    op, out = info(sys.argv[1]), Path(sys.argv[2])
    cases = bench_cases(op, sys.argv[3:]) if sys.argv[3:] else sparse(op, bench_cases(op))
    if arch := arch_of(torch.device("cuda")):
        compile_ahead(op, cases, arch)
    limits = measure(GPU_CLOCK, torch.device("cuda", torch.cuda.current_device()))
    stamped = stamp(torch.cuda.get_device_name())
    keep = partial(append, out)
    records = {"torch": Record(op, "torch", stamped, limits, keep, print)}
    records["jax"] = Record(op, "jax", stamped, limits, keep, print)
    for case in cases:
        sets = [leaves(draw(case, "cuda", seed)) for seed in range(min(run_jax.MOST_SETS, sets_for(op, case)))]
        found: dict[tuple[str, Pass], float] = {}
        for framework, passes in (("torch", in_torch(op, case, sets)), ("jax", in_jax(op, case, sets))):
            for which, run in passes.items():
                found[framework, which] = kernels_ms(run) / len(sets)
                timing = Timing(found[framework, which], "kernels")
                records[framework].add(case, which, Peer("retrograd", partial(own_function, op)), timing, None)
        for which in passes:
            ours, theirs = found["torch", which], found["jax", which]
            print(f"{case.name:24s} {which} torch {ours:.4f} ms, jax {theirs:.4f} ms, {theirs / ours:.3f}", flush=True)
        del sets, passes


if __name__ == "__main__":
    main()
