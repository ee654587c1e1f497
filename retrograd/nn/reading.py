"""Values of generated tokens, read while the GPU computes the next ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from retrograd.core.errors import bad_type


def read_back(tokens: Iterator[Tensor]) -> Iterator[list[int]]:
    """The values of the tokens that `generate` yields, each step's while the next step runs on the GPU.

    A step is asked for before the values of the one before it are yielded: one more than are used, where the caller
    stops early.

    Args:
        tokens: from `generate` without log probabilities, (B,) for each step.

    Raises:
        TypeError: when values are requested, for anything but a tensor.

    Example:
        >>> import torch
        >>> from retrograd.nn import LanguageModel, MambaConfig, generate, read_back
        >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> [len(row) for row in read_back(generate(model, torch.tensor([[100, 101, 102]]), 5))]
        [1, 1, 1, 1, 1]
    """
    before = None
    for step in tokens:
        if not isinstance(step, Tensor):
            raise bad_type("read_back", "tokens", step, "tensors, from generate without log probabilities")
        now = HostCopy(step)
        if before is not None:
            yield before.values()
        before = now
    if before is not None:
        yield before.values()


class HostCopy:
    """A copy of a tensor on the host, which is complete at some later time."""

    def __init__(self, tensor: Tensor) -> None:
        self.there = tensor
        self.arrived: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self.there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.there.copy_(tensor, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record(torch.cuda.current_stream(tensor.device))  # another device may be the current one

    def values(self) -> Any:
        """The values, as of `Tensor.tolist`, once they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.there.tolist()
