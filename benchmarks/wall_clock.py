"""How long a call takes on a CPU, for the scripts beside this one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def median(run: Callable[[], Any], times: int) -> float:
    """Milliseconds, the median of so many calls; the caller has called it once before, for what only the first does."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return 1000 * statistics.median(found)
