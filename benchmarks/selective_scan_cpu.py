"""The portable selective scan against a Python loop over time, on this machine's CPU, in PyTorch and JAX.

    python benchmarks/selective_scan_cpu.py [torch] [jax]

Prints milliseconds of forward and of forward and backward, medians of a few runs, and their ratio. In PyTorch there are
two loops: the reference, whose step is a few operations on (B, D, N), and the usual one, which first computes decays
and inputs of all steps, (B, D, T, N).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from wall_clock import median

BATCH, TIME, CHANNELS, N = 2, 1024, 512, 16


def report(name: str, loop: tuple[Callable[[], Any], ...], portable: tuple[Callable[[], Any], ...]) -> None:
    for run in (*loop, *portable):
        run()
    ours = [median(run, 7) for run in portable]
    theirs = [median(run, 3) for run in loop]
    ours.append(ours[1] - ours[0])
    theirs.append(theirs[1] - theirs[0])
    for which, a, b in zip(("forward", "both", "backward"), theirs, ours, strict=True):
        print(f"{name:6} {which:9} loop {a:8.1f} ms   portable {b:7.1f} ms   ratio {a / b:5.1f}", flush=True)


def in_torch() -> None:
    import torch

    from retrograd import selective_scan
    from retrograd.ops.selective_scan.reference import selective_scan as loop

    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    inputs = {
        "x": normal(BATCH, TIME, CHANNELS),
        "dt": normal(BATCH, TIME, CHANNELS) - 3,
        "A": -normal(CHANNELS, N).exp(),
        "B": normal(BATCH, TIME, N),
        "C": normal(BATCH, TIME, N),
    }
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    dy = normal(BATCH, TIME, CHANNELS)

    def runs(function: Callable[..., Any]) -> tuple[Callable[[], Any], ...]:
        def forward() -> Any:
            return function(*leaves, dt_softplus=True)

        return forward, lambda: torch.autograd.grad(forward(), leaves, dy)

    def usual(x: Any, dt: Any, A: Any, B: Any, C: Any, dt_softplus: bool) -> Any:
        delta = torch.nn.functional.softplus(dt).transpose(1, 2)
        decay = torch.exp(torch.einsum("bdt,dn->bdtn", delta, A))
        inputs = torch.einsum("bdt,btn,bdt->bdtn", delta, B, x.transpose(1, 2))
        h, ys = torch.zeros(BATCH, CHANNELS, N), []
        for t in range(TIME):
            h = decay[:, :, t] * h + inputs[:, :, t]
            ys.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
        return torch.stack(ys, 1)

    portable = runs(selective_scan)
    report("torch", runs(loop), portable)
    report("usual", runs(usual), portable)


def in_jax() -> None:
    import jax
    import jax.numpy as jnp

    from retrograd.jax import selective_scan

    keys = jax.random.split(jax.random.key(0), 6)
    shapes = [(BATCH, TIME, CHANNELS)] * 2 + [(CHANNELS, N)] + [(BATCH, TIME, N)] * 2 + [(BATCH, TIME, CHANNELS)]
    x, dt, A, B, C, dy = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    inputs = (x, dt - 3, -jnp.exp(A), B, C)

    @jax.jit
    def step(h: Any, x: Any, delta: Any, A: Any, B: Any, C: Any) -> Any:
        h = jnp.exp(delta[..., None] * A) * h + (delta * x)[..., None] * B[:, None]
        return h, (h * C[:, None]).sum(-1)

    def loop(x: Any, dt: Any, A: Any, B: Any, C: Any) -> Any:
        delta = jax.nn.softplus(dt)
        h, ys = jnp.zeros((BATCH, CHANNELS, N)), []
        for t in range(TIME):
            h, y = step(h, x[:, t], delta[:, t], A, B[:, t], C[:, t])
            ys.append(y)
        return jnp.stack(ys, 1)

    def runs(function: Callable[..., Any]) -> tuple[Callable[[], Any], ...]:
        def forward() -> Any:
            return jax.block_until_ready(function(*inputs))

        def both() -> Any:
            _, pullback = jax.vjp(function, *inputs)
            return jax.block_until_ready(pullback(dy))

        return forward, both

    report("jax", runs(loop), runs(lambda *arrays: selective_scan(*arrays, dt_softplus=True)))


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["torch", "jax"]
    if "torch" in chosen:
        in_torch()
    if "jax" in chosen:
        in_jax()
