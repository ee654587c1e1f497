"""Times single kernels by a profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

FLUSHED_BYTES = 2**28  # more than any L2 holds


def kernel_times(call: Callable[[], object], runs: int = 5) -> dict[str, float]:
    """Microseconds of each kernel of a call, by its name: the mean of a few runs, each after a flush of the L2."""
    flush = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(runs):
            flush.zero_()
            call()
    times: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        times[event.key] += event.device_time_total / runs
    return times
