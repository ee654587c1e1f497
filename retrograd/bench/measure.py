"""Timing on a GPU: device time from CUDA graphs over rotating inputs, and the host's time a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

# A cold L2: a round over the input sets touches this much memory, several times the largest L2 of the supported GPUs.
COLD_BYTES = 512 * 2**20


def input_sets(bytes_per_call: int) -> int:
    """How many sets of inputs to rotate among, so that a set has left the L2 when its turn comes again."""
    return max(2, min(64, -(-COLD_BYTES // max(bytes_per_call, 1))))


def device_ms(calls: list[Callable[[], Any]], repeats: int = 20) -> float:
    """Median device time of one call, in milliseconds.

    Args:
        calls: the same call on different inputs; one CUDA graph holds them all in order, so gaps between launches are
            the GPU's own and the host does not appear.
        repeats: replays of the graph, each timed with events; the median is returned.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return replay_ms(graph.replay, repeats) / len(calls)


def replay_ms(replay: Callable[[], Any], repeats: int) -> float:
    """Median time between events around `replay`, in milliseconds, after two warm-up runs."""
    for _ in range(2):
        replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


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
