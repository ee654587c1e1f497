"""Compiles a kernel in a process of its own, into Triton's cache on disk.

Triton reads a kernel in Python, which one thread of a process runs at a time: with threads alone, the first call of an
op of large kernels takes twice as long. The other process needs neither PyTorch nor JAX, and starts within a fraction
of a second.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
LEAST_CORES = 4  # with fewer, processes would wait for one another


def possible(kernel: Any) -> bool:
    """Whether a process could compile the kernel, and would not take a core that others need."""
    named = kernel.fn.__module__.startswith(f"{PACKAGE.name}.")
    python = Path(sys.executable or "").name.startswith("python")  # and not a program that Python is built into
    return named and python and len(os.sched_getaffinity(0)) >= LEAST_CORES


def run(kernel: Any, job: Any) -> bool:
    """Do `build.compile_job` in another process.

    Returns:
        Whether it ended well. If not, the caller does the work itself, and meets the error.
    """
    named = (kernel.fn.__module__, kernel.fn.__name__)
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        input=pickle.dumps((sys.path, named)) + pickle.dumps(job),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is for the process that waits
        check=False,
    )
    return done.returncode == 0


def main() -> None:
    """What the other process does."""
    path, (module, name) = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    sys.modules[PACKAGE.name] = package = types.ModuleType(PACKAGE.name)  # without its __init__, which imports PyTorch
    package.__path__ = [str(PACKAGE)]
    kernel = getattr(import_module(module), name)
    import_module(f"{PACKAGE.name}.core.build").compile_job(kernel, pickle.load(sys.stdin.buffer))


if __name__ == "__main__":
    main()
