"""What an op calls where its sequences are divided over devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from ..op import Op

Results = tuple[Any, ...]  # one for each of the op's results, None where it is absent


@runtime_checkable
class Context(Protocol):
    """A division of sequences over devices, such as `retrograd.jax.distributed.ContextParallel`."""

    def call(self, op: Op, run: Callable[..., Results], arrays: dict[str, Any], options: dict[str, Any]) -> Results:
        """The results for this device's steps, where `run(arrays, options)` is the op on one device."""
        ...

    def positions(self, time: int, cu_seqlens: Any = None) -> Any:
        """(time,) int32: the position of each of this device's steps in its sequence."""
        ...
