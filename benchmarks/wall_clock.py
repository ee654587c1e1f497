"""The time of a call on a CPU, for the scripts in this folder."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def median(run: Callable[[], Any], times: int) -> float:
    """Milliseconds, the median of `times` calls; the caller makes one call before, for one-time work."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return 1000 * statistics.median(found)
