"""Values of generated tokens, read while the GPU computes the next ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def read_back(tokens: Iterator[Tensor]) -> Iterator[list[int]]:
    """The values of the tokens that `generate` yields, each step's while the next step runs on the GPU.

    A step is asked for before the values of the one before it are yielded: one more than are used, where the caller
    stops early.

    Args:
        tokens: from `generate`, (B,) for each step.

    Example:
        >>> import torch
        >>> from retrograd.nn import LanguageModel, MambaConfig, generate, read_back
        >>> model = LanguageModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> [len(row) for row in read_back(generate(model, torch.tensor([[100, 101, 102]]), 5))]
        [1, 1, 1, 1, 1]
    """
    before = None
    for step in tokens:
        now = _Copy(step)
        if before is not None:
            yield before.values()
        before = now
    if before is not None:
        yield before.values()


class _Copy:
    """A copy of tokens on the host, which is complete at some later time."""

    def __init__(self, tokens: Tensor) -> None:
        self.there = tokens
        self.arrived: torch.cuda.Event | None = None
        if tokens.is_cuda:
            self.there = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self.there.copy_(tokens, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def values(self) -> list[int]:
        """The values, once they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return list(self.there.tolist())
