"""Times calls back to back for seconds, with the GPU's clock and power beside: what a training run sees.

    python3 benchmarks/sustained.py attention --cases 'B4_T4096_*,causal_B4_T4096_*' --peers cudnn,fa4

Other benchmarks time single calls on a GPU that rests between them: its clock is higher then than under load. Here all
implementations of a case run one after another, each for twice the given seconds, of which the second half counts.
Rows go to results/<gpu>/sustained.jsonl: those of the other benchmarks with `"timing": "sustained"`, and `mhz`, `watts`
and `joules`, of a call. They need `nvidia-smi`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from math import ceil
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from retrograd.bench.ahead import compile_ahead
from retrograd.bench.environment import stamp
from retrograd.bench.limits import measure
from retrograd.bench.loop import time_cases
from retrograd.bench.measure import GPU_CLOCK, Calls, Clock, Timing, replay_ms
from retrograd.bench.peers import Peer
from retrograd.bench.record import Record
from retrograd.bench.results import LIMITS, Row, rounded
from retrograd.bench.run import Work, own_function
from retrograd.bench.selection import bench_cases, chosen_peers
from retrograd.core.torch.launch import arch_of
from retrograd.ops.infos import info

SAMPLE_MS = 20
QUERY = ["--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", f"--loop-ms={SAMPLE_MS}"]


class Sample(NamedTuple):
    """When it was read, in seconds; the clock of the multiprocessors and the power of the board."""

    at: float
    mhz: float
    watts: float


class Watch:
    """Reads clock and power of a GPU in a thread, until it is closed."""

    def __init__(self, gpu: str) -> None:
        self.samples: list[Sample] = []
        self._process = subprocess.Popen(["nvidia-smi", f"--id={gpu}", *QUERY], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            mhz, watts = map(float, line.split(","))
            self.samples.append(Sample(time.perf_counter(), mhz, watts))

    def between(self, start: float, end: float) -> list[Sample]:
        """The samples of an interval."""
        return [sample for sample in self.samples if start <= sample.at <= end]

    def close(self) -> None:
        """Read no more."""
        self._process.terminate()


class Sustained(NamedTuple):
    """The time of one call, and from when to when the calls that count ran, in seconds."""

    ms: float
    start: float
    end: float


def sustained(calls: Calls, seconds: float) -> Sustained:
    """Time calls for twice the seconds, of which the second half counts."""
    stream = torch.cuda.current_stream()
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [call() for call in calls]
    replays = ceil(1e3 * seconds / replay_ms(graph.replay, 3))
    for _ in range(replays):
        graph.replay()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(replays):
        graph.replay()
    after.record()
    before.synchronize()
    start = time.perf_counter()
    after.synchronize()
    end = time.perf_counter()
    ms = before.elapsed_time(after) / (replays * len(calls))
    del kept
    return Sustained(ms, start, end)


def with_samples(row: Row, samples: list[Sample]) -> str:
    """The line of a row, with the medians of its samples."""
    mhz = statistics.median(sample.mhz for sample in samples)
    watts = statistics.median(sample.watts for sample in samples)
    assert row.device_ms is not None
    found = {"timing": "sustained", "mhz": mhz, "watts": watts, "joules": rounded(watts * row.device_ms / 1e3)}
    return json.dumps(json.loads(row.to_json()) | found)


def main() -> int:
    parser = argparse.ArgumentParser(description="Times calls back to back for seconds, with the clock and the power.")
    parser.add_argument("op")
    parser.add_argument("--cases", default="*", help="patterns of case names, comma-separated")
    parser.add_argument("--peers", help="peers, comma-separated, '' for none")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--results", type=Path, required=True, help="folder for sustained.jsonl")
    arguments = parser.parse_args()
    op = info(arguments.op)
    cases = bench_cases(op, arguments.cases.split(","))
    names = None if arguments.peers is None else [name for name in arguments.peers.split(",") if name]
    device = torch.device("cuda", torch.cuda.current_device())
    if arch := arch_of(device):
        compile_ahead(op, cases, arch)
    watch = Watch(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    found: list[Sustained] = []

    def timed(calls: Calls) -> Timing:
        found.append(sustained(calls, arguments.seconds))
        return Timing(found[-1].ms, "graph")

    def emit(row: Row) -> None:
        if row.op == LIMITS or row.device_ms is None:
            return
        line = with_samples(row, watch.between(found[-1].start, found[-1].end))
        with (arguments.results / "sustained.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    clock = Clock(timed, GPU_CLOCK.host_us, GPU_CLOCK.events_ms)
    with torch.cuda.stream(torch.cuda.Stream()):
        record = Record(op, "torch", stamp(torch.cuda.get_device_name()), measure(GPU_CLOCK, device), emit, print)
        implementations = (Peer(op.label, partial(own_function, op)), *chosen_peers(op.name, "torch", names))
        begin: Callable[..., Work] = partial(Work, record, clock, "cuda")
        failed = time_cases(record, cases, implementations, begin, lambda function, case: {})
    watch.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
