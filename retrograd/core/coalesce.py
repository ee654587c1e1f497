"""Leaves out a pass of Triton's compiler where it has nothing to choose.

For every access to memory, `TritonGPUCoalesce` walks all operations that depend on one another, once from each of them:
with hundreds of unrolled accesses it takes nearly all of the time. What it chooses is how many neighbouring elements a
thread takes, and that is one wherever a vector has no more elements than the program has threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


class Choice(threading.local):
    """What the kernel that this thread compiles needs.

    Attributes:
        needed: whether it needs the pass.
    """

    needed = True


CHOICE = Choice()


@contextmanager
def coalescing(needed: bool) -> Iterator[None]:
    """A context in which this thread compiles with the pass or without it; other threads always with it."""
    if not needed:
        _install()
    CHOICE.needed = needed
    try:
        yield
    finally:
        CHOICE.needed = True


@cache
def _install() -> None:
    """Let Triton's backends ask `CHOICE`. Where a later Triton has no such function, the pass stays."""
    from triton._C.libtriton import passes

    add = getattr(passes.ttgpuir, "add_coalesce", None)
    if add is None:
        return

    def add_if_needed(*arguments: Any) -> None:
        if CHOICE.needed:
            add(*arguments)

    passes.ttgpuir.add_coalesce = add_if_needed
