"""The machine's limits, measured in the same run as the ops: a copy, a matrix product, exponentials."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from retrograd.core.program import Array, Launch, Program
from retrograd.core.torch.launch import arch_of, prepare

from .measure import Clock

Bound = Literal["bytes", "flops", "exp"]

COPY_BYTES = 2**30
MATMUL_SIZE = 8192
EXPS = 2**32
EXP_TILE = 2048  # exponentials in flight in a program instance: 8 per thread
EXP_ROUNDS = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """The highest rates of the machine.

    Attributes:
        copy: bytes per second, read plus written.
        matmul: bf16 floating-point operations per second.
        exp: fp32 exponentials per second.
    """

    copy: float
    matmul: float
    exp: float

    @classmethod
    def timed(cls, copy_ms: float, matmul_ms: float, exp_ms: float) -> Limits:
        """From the times of a copy of COPY_BYTES, a product of two MATMUL_SIZE matrices, and EXPS exponentials."""
        return cls(2 * COPY_BYTES / copy_ms * 1e3, 2 * MATMUL_SIZE**3 / matmul_ms * 1e3, EXPS / exp_ms * 1e3)

    @property
    def copy_ms(self) -> float:
        """The measured time of the copy."""
        return 2 * COPY_BYTES / self.copy * 1e3

    @property
    def matmul_ms(self) -> float:
        """The measured time of the product."""
        return 2 * MATMUL_SIZE**3 / self.matmul * 1e3

    @property
    def exp_ms(self) -> float:
        """The measured time of the exponentials."""
        return EXPS / self.exp * 1e3

    def of(self, bytes_moved: float, flops: float, exps: float = 0.0) -> tuple[float, Bound]:
        """The least time in milliseconds for so many bytes and operations, and which of them bounds it."""
        times: dict[Bound, float] = {
            "bytes": bytes_moved / self.copy * 1e3,
            "flops": flops / self.matmul * 1e3,
            "exp": exps / self.exp * 1e3,
        }
        bound = max(times, key=lambda name: times[name])
        return times[bound], bound


def copy_ms(clock: Clock, device: torch.device) -> float:
    """The time of a copy of COPY_BYTES random bytes."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device).random_()
    # It is not captured in a graph: as a graph's copy node, it was measured at two thirds of the speed.
    return clock.events_ms(partial(torch.empty_like(source).copy_, source))


def measure(clock: Clock, device: torch.device) -> Limits:
    """Measure the limits with PyTorch, on random data: on zeros a GPU uses less power and runs faster."""
    a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = partial(torch.matmul, a, b)
    arch = arch_of(device)
    if arch is None:
        raise RuntimeError(f"no kernel runs on {device}")
    exponentials = partial(prepare(exp_program(), ("start",), ("out",), arch, device), [torch.zeros(1, device=device)])
    return Limits.timed(copy_ms(clock, device), *(clock.device([call, call]).ms for call in (product, exponentials)))


def exp_program() -> Program:
    """A program that computes EXPS exponentials in registers, for both frameworks."""
    from .exp_kernel import exponentials

    programs = EXPS // (EXP_TILE * EXP_ROUNDS)
    start, out = Array("start", (1,), "float32"), Array("out", (programs,), "float32")
    pointers = {"start_ptr": "start", "out_ptr": "out"}
    launch = Launch(exponentials, programs, pointers, constants={"TILE": EXP_TILE, "ROUNDS": EXP_ROUNDS}, num_warps=8)
    return Program((start,), (out,), (), (launch,))
