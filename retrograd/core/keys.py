"""Makes the key of a kernel in Triton's cache independent of what a process has compiled before.

The key has the constants that a kernel reads, and those of the functions that it calls. Triton takes the latter before
it has looked for them, and finds only those of functions that another kernel has called earlier. Of two processes that
compile in another order, such as one that warms the cache, each would not find the other's binaries.
"""

from __future__ import annotations

import threading
from typing import Any

from triton.runtime.jit import DependenciesFinder

# Held while Triton reads a kernel. Python counts the depth of a syntax tree for all threads together, and where two of
# them build trees it may raise SystemError.
READING = threading.RLock()


def settle(kernel: Any) -> None:
    """Find a kernel's key, and for each function that it calls the key of that one before."""
    if kernel.hash is not None:
        return
    with READING:
        original = DependenciesFinder._update_hash

        def callee_first(finder: DependenciesFinder, function: Any) -> None:
            _ = function.cache_key
            original(finder, function)

        DependenciesFinder._update_hash = callee_first
        try:
            _ = kernel.cache_key
        finally:
            DependenciesFinder._update_hash = original
