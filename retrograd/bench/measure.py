"""Timing on a GPU: device time from CUDA graphs over rotating inputs, and host time per call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

Calls = Sequence[Callable[[], Any]]

# For a cold L2, a round over the input sets accesses this much memory: several times the largest L2 of supported GPUs.
COLD_BYTES = 512 * 2**20
# Replays of a round: enough for a stable median, few enough that a grid of shapes takes minutes.
REPEATS = 10
# The device sleeps this long (about 0.2 ms) before a timed replay, so that the replay is queued when timing starts.
SLEEP_CYCLES = 400_000
CYCLES_PER_SECOND = 2e9  # no supported GPU has a higher clock rate


How = Literal["graph", "events", "wall", "kernels"]


class Timing(NamedTuple):
    """Device time of a call, and how it was measured: a CUDA graph, events around the calls, or the wall clock."""

    ms: float
    how: How


@dataclass(frozen=True)
class Clock:
    """How calls are timed. GPU_CLOCK needs a GPU; tests pass another clock."""

    device: Callable[[Calls], Timing]
    host_us: Callable[[Callable[[], Any]], float]
    events_ms: Callable[[Callable[[], Any]], float]


def input_sets(bytes_per_call: int) -> int:
    """The number of input sets to rotate among, so that a set has left the L2 before it is used again.

    The number is odd: with two sets whose size is a power of two, the addresses of inputs and outputs differ by a power
    of two and share DRAM banks, which was measured to cost every kernel here up to 10% of its speed.
    """
    return max(3, min(63, -(-COLD_BYTES // max(bytes_per_call, 1)) | 1))


def device_ms(calls: Calls, repeats: int = REPEATS) -> float:
    """Median device time of one call, in milliseconds.

    Args:
        calls: the same call on different inputs; one CUDA graph contains them all in order, so the time includes gaps
            between launches on the GPU but no host time. Results are kept until all calls have run, so each call writes
            to its own memory, as cold as its inputs.
        repeats: replays of the graph, each timed with events; the median is returned.

    The graph is captured on the current stream, or on a new one if that is the default stream. A backward pass runs on
    the stream of its forward pass, so to time one, another stream than the default must be current for both.
    """
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
            call()
    current.wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [call() for call in calls]
    ms = replay_ms(graph.replay, repeats) / len(calls)
    del kept
    return ms


def replay_ms(replay: Callable[[], Any], repeats: int = REPEATS, sleep_cycles: int = SLEEP_CYCLES) -> float:
    """Median time between events around `replay`, in milliseconds, after two warm-up runs."""
    for _ in range(2):
        replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(sleep_cycles)
        start.record()
        kept = replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
        del kept
    return statistics.median(times)


def events_ms(calls: Calls, repeats: int = REPEATS) -> float:
    """As `device_ms`, for calls that cannot be captured: the device sleeps until the host has queued them all."""

    def run_all() -> list[Any]:
        return [call() for call in calls]

    run_all()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run_all()
    host_s = time.perf_counter() - start
    return replay_ms(run_all, repeats, SLEEP_CYCLES + int(2 * host_s * CYCLES_PER_SECOND)) / len(calls)


def device(calls: Calls) -> Timing:
    """Device time by a graph, or by events if the capture fails; errors of the call itself are raised."""
    try:
        return Timing(device_ms(calls), "graph")
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:
        torch.cuda.synchronize()
        return Timing(events_ms(calls), "events")


def host_us(call: Callable[[], Any], repeats: int = 200) -> float:
    """Median host time of one call, in microseconds; the device is idle when the call starts."""
    for _ in range(20):
        call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


GPU_CLOCK = Clock(device, host_us, replay_ms)
