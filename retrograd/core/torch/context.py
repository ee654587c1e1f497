"""What an op calls where its sequences are divided over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..op import Op

Results = tuple[Tensor | None, ...]


@runtime_checkable
class Context(Protocol):
    """A division of sequences over processes, such as `retrograd.distributed.ContextParallel`."""

    def call(self, op: Op, run: Callable[..., Results], arrays: dict[str, Any], settings: dict[str, Any]) -> Results:
        """The results for this process's steps, where `run(arrays, settings)` is the op in one process."""
        ...

    def positions(self, device: torch.device) -> Tensor:
        """(own steps,) integers: the position of each of this process's steps in its sequence."""
        ...
