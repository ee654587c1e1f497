"""Timing on a GPU: device time from CUDA graphs over rotating inputs, and the host's time a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

Calls = Sequence[Callable[[], Any]]

# A cold L2: a round over the input sets touches this much memory, several times the largest L2 of the supported GPUs.
COLD_BYTES = 512 * 2**20
# Replays of a round; the median of so many is steady, and a grid of shapes stays within minutes.
REPEATS = 10
# The device sleeps this long before a timed replay, so that the replay is queued when the clock starts: about 0.2 ms.
SLEEP_CYCLES = 400_000
CYCLES_PER_SECOND = 2e9  # no supported GPU is clocked higher


How = Literal["graph", "events", "wall", "kernels"]


class Timing(NamedTuple):
    """Device time of a call, and how it was taken: a CUDA graph, events around the calls, or the wall clock."""

    ms: float
    how: How


@dataclass(frozen=True)
class Clock:
    """How calls are timed. The one of this module needs a GPU; tests give another."""

    device: Callable[[Calls], Timing]
    host_us: Callable[[Callable[[], Any]], float]
    events_ms: Callable[[Callable[[], Any]], float]


def input_sets(bytes_per_call: int) -> int:
    """How many sets of inputs to rotate among, so that a set has left the L2 when its turn comes again.

    An odd number: with two sets of a power of two of bytes, inputs and outputs lie a power of two apart and share their
    DRAM banks, which was seen to cost every kernel here up to 10% of its speed.
    """
    return max(3, min(63, -(-COLD_BYTES // max(bytes_per_call, 1)) | 1))


def device_ms(calls: Calls, repeats: int = REPEATS) -> float:
    """Median device time of one call, in milliseconds.

    Args:
        calls: the same call on different inputs; one CUDA graph holds them all in order, so gaps between launches are
            the GPU's own and the host does not appear. What they return is kept until all have run, so each writes to
            memory of its own, as cold as its inputs.
        repeats: replays of the graph, each timed with events; the median is returned.

    The graph is captured on the current stream, or on a new one where that is the default stream. A backward pass runs
    on the stream of its forward pass, so its caller must have a stream of its own current from the start.
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
    """As `device_ms`, for calls that no CUDA graph can hold: the device sleeps until the host has queued them all."""

    def run_all() -> list[Any]:
        return [call() for call in calls]

    run_all()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run_all()
    host_s = time.perf_counter() - start
    return replay_ms(run_all, repeats, SLEEP_CYCLES + int(2 * host_s * CYCLES_PER_SECOND)) / len(calls)


def device(calls: Calls) -> Timing:
    """Device time by a graph, or by events where the capture fails; a call that fails by itself fails here too."""
    try:
        return Timing(device_ms(calls), "graph")
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:
        torch.cuda.synchronize()
        return Timing(events_ms(calls), "events")


def host_us(call: Callable[[], Any], repeats: int = 200) -> float:
    """Median time the host spends in one call, in microseconds; the device is idle when the call begins."""
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
