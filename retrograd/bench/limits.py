"""The machine's limits, measured in the same run as what they limit: a large copy and a large matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from .measure import Clock

Bound = Literal["bytes", "flops", "exp"]

COPY_BYTES = 2**30
MATMUL_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine can do at best.

    Attributes:
        copy: bytes a second, read plus written.
        matmul: bf16 floating-point operations a second.
    """

    copy: float
    matmul: float

    @classmethod
    def timed(cls, copy_ms: float, matmul_ms: float) -> Limits:
        """From the times of a copy of COPY_BYTES and of a product of two MATMUL_SIZE matrices."""
        return cls(2 * COPY_BYTES / copy_ms * 1e3, 2 * MATMUL_SIZE**3 / matmul_ms * 1e3)

    @property
    def copy_ms(self) -> float:
        """The time of the copy that was measured."""
        return 2 * COPY_BYTES / self.copy * 1e3

    @property
    def matmul_ms(self) -> float:
        """The time of the product that was measured."""
        return 2 * MATMUL_SIZE**3 / self.matmul * 1e3

    def of(self, bytes_moved: float, flops: float) -> tuple[float, Bound]:
        """The least time in milliseconds for a call that moves so many bytes and does so many operations, and why."""
        times: dict[Bound, float] = {"bytes": bytes_moved / self.copy * 1e3, "flops": flops / self.matmul * 1e3}
        bound = max(times, key=lambda name: times[name])
        return times[bound], bound


def measure(clock: Clock, device: str) -> Limits:
    """Measure them with PyTorch, on random data: on zeros a GPU draws less power and runs faster."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device).random_()
    copy = partial(torch.empty_like(source).copy_, source)
    a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = partial(torch.matmul, a, b)
    # Not in a graph: a copy becomes a node of its own kind there, which was seen to run at two thirds of the speed.
    return Limits.timed(clock.events_ms(copy), clock.device([product, product]).ms)
