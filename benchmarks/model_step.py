"""A row of models.py: the training step of one model by one implementation, timed in this process."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from model_shapes import CUDA, CUDA_COMPILED, FLA, JAX, MAMBA_SSM, MAMBA_SSM_COMPILED, MODELS, SLOW, SLOW_BATCH
from own_process import ready

WARM_UP, ROUNDS, STEPS, PROFILED = 3, 5, 4, 2


class Training(NamedTuple):
    """A model that is ready for its first step.

    Attributes:
        step: a training step, on the same tokens each time; returns the loss.
        wait: until the device has done all that was asked for.
        parameters: their number.
        kernels: the module whose kernels mix along time.
        peak: the most bytes that were allocated on the device since the warm-up.
        settle: after the warm-up: forget its peak, and give memory back.
        profile: the time of every kernel of some steps, as text.
    """

    step: Callable[[], Any]
    wait: Callable[[], None]
    parameters: int
    kernels: str
    peak: Callable[[], int]
    settle: Callable[[], None]
    profile: Callable[[Callable[[], Any]], str]


def measure(name: str, impl: str, peers: str | None, profiles: str | None) -> None:
    """Print `ready` after the warm-up, wait for a line, time steps, and print the row."""
    import torch

    from retrograd.bench.environment import versions

    if peers:
        sys.path.insert(0, peers)
    if impl == JAX:
        from model_jax import training
    else:
        from model_torch import training  # type: ignore[assignment]
    slow = impl == SLOW and name in SLOW_BATCH
    model = MODELS[name]
    batch = SLOW_BATCH[name] if slow else model.batch
    own = training(model._replace(batch=batch), impl)
    began = time.perf_counter()
    losses = [own.step()]
    own.wait()
    first = time.perf_counter() - began
    losses += [own.step() for _ in range(0 if slow else WARM_UP - 1)]
    own.wait()
    own.settle()
    ready()
    rounds, steps = (1, 1) if slow else (ROUNDS, STEPS)
    ms = statistics.median(timed(own, steps) for _ in range(rounds))
    row = {
        "op": "model",
        "case": name,
        "shape": {"B": batch, "T": model.time},
        "dtype": "bfloat16",
        "pass": "step",
        "impl": impl,
        "framework": "jax" if impl == JAX else "torch",
        "device_ms": round(ms, 2),
        "tokens_s": round(batch * model.time / ms * 1000),
        "peak_gib": round(own.peak() / 2**30, 2),
        "first_step_s": round(first, 1),
        "parameters": own.parameters,
        "kernels": own.kernels,
        "losses": [round(float(loss), 3) for loss in losses],
        "gpu": torch.cuda.get_device_name(),
        "versions": versions(packages(impl)),
    }
    if profiles:
        folder = Path(profiles)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}-{impl}.txt".replace(", ", "-").replace(" ", "-")
        file.write_text(own.profile(lambda: timed(own, PROFILED)))
    print(json.dumps(row), flush=True)


def packages(impl: str) -> tuple[str, ...]:
    """The distributions whose versions are in the row."""
    if impl == JAX:
        return "jax", "triton", "optax"
    peers: tuple[str, ...] = ("fla-core", "causal_conv1d") if impl == FLA else ()
    if impl in (CUDA, CUDA_COMPILED, MAMBA_SSM, MAMBA_SSM_COMPILED):
        peers = "mamba_ssm", "causal_conv1d"
    return "torch", "triton", *(("transformers",) if impl.startswith("transformers") else ()), *peers


def timed(training: Training, steps: int) -> float:
    """Milliseconds of a step, from so many that begin on an idle device and follow each other without waiting."""
    training.wait()
    start = time.perf_counter()
    for _ in range(steps):
        training.step()
    training.wait()
    return 1000 * (time.perf_counter() - start) / steps
