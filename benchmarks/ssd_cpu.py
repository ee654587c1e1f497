"""The portable SSD against transformers' own scan of Mamba-2, on this machine's CPU, in PyTorch.

    python benchmarks/ssd_cpu.py

Without an installed kernel, transformers computes the scan of `Mamba2Mixer` in a Python function, in chunks of 256
steps, with matrix products; autograd differentiates it. It is called here with the layer's activations, without
projections, convolution and norm. Both sides have dt_bias, softplus and D, and the results are compared first.

Prints milliseconds of forward and of forward and backward, medians of a few runs with one thread and with two, and
their ratio; writes them to benchmarks/results/cpu/ssd.txt.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from wall_clock import median

from retrograd.ops.infos import info

BATCH, TIME, HEADS, P, N = 2, 1024, 8, 64, 64
CHUNK = 256  # transformers' default for Mamba-2
RUNS = {"transformers": 5, "retrograd": 9}
RESULTS = Path(__file__).parent / "results" / "cpu" / "ssd.txt"


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    tensors = {
        "x": normal(BATCH, TIME, HEADS, P),
        "dt": normal(BATCH, TIME, HEADS),
        "A": -normal(HEADS).exp(),
        "B": normal(BATCH, TIME, 1, N),
        "C": normal(BATCH, TIME, 1, N),
        "D": normal(HEADS),
        "dt_bias": normal(HEADS) - 3,
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def main() -> None:
    tensors = inputs()
    leaves = list(tensors.values())
    dy = torch.randn(BATCH, TIME, HEADS, P, generator=torch.Generator().manual_seed(1))

    def theirs() -> Any:
        named = {name: tensor for name, tensor in tensors.items() if name != "x"}
        return mamba2_chunk_scan(tensors["x"], **named, chunk_size=CHUNK, dt_softplus=True)

    def ours() -> Any:
        return info("ssd").torch(**tensors, dt_softplus=True)

    def passes(forward: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
        return {"forward": forward, "both": lambda: torch.autograd.grad(forward(), leaves, dy)}

    for a, b in zip(passes(theirs)["both"](), passes(ours)["both"](), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(a.abs().max()))
    lines = [
        f"benchmarks/ssd_cpu.py on {os.cpu_count()} cores: B{BATCH} T{TIME} H{HEADS} P{P} N{N} G1, fp32, with dt_bias, "
        f"softplus and D; torch {torch.__version__}, transformers {transformers.__version__}",
    ]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found: dict[str, dict[str, float]] = {name: {} for name in RUNS}
        for name, forward in (("transformers", theirs), ("retrograd", ours)):
            for which, run in passes(forward).items():
                run()
                found[name][which] = median(run, RUNS[name])
            found[name]["backward"] = found[name]["both"] - found[name]["forward"]
        for which, b in found["retrograd"].items():
            a = found["transformers"][which]
            times = f"transformers {a:8.1f} ms   retrograd {b:7.1f} ms   ratio {a / b:5.1f}"
            lines.append(f"threads {threads}  {which:9} {times}")
    print("\n".join(lines))
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
