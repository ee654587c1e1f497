"""Whole training steps of Mamba language models, with random weights, on a GPU.

    python benchmarks/models.py [--results DIR] [--models 130m,790m] [--impls ...] [--peers DIR]
    python benchmarks/models.py --plot-only --results DIR

A step is forward, loss, backward, AdamW and clearing the gradients, on B 8, T 2048 in bf16. Each row is measured in its
own process, since transformers chooses its kernels when it is imported. `--peers` is a folder with mamba_ssm and
causal_conv1d, see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MODELS = {"130m": {"d_model": 768, "n_layer": 24}, "790m": {"d_model": 1536, "n_layer": 48}}
VOCABULARY = 50280
BATCH, TIME = 8, 2048
SLOW_BATCH = {"130m": 8, "790m": 1}  # at 8 a step of the slow path would take ten minutes
WARM_UP, STEPS = 3, 10
ROWS = "models.jsonl"
SLOW, CUDA, INSTALLED, PATCHED = (
    "transformers",
    "transformers, mamba_ssm",
    "transformers, retrograd",
    "transformers, retrograd and its norms",
)
NN, COMPILED = "retrograd.nn", "retrograd.nn, torch.compile"
PEERS = ("mamba_ssm", "causal_conv1d")  # of the implementation CUDA
IMPLS = (CUDA, INSTALLED, PATCHED, NN, COMPILED, SLOW)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("."), help="folder of models.jsonl and models.png")
    parser.add_argument("--models", default=",".join(MODELS), help=", ".join(MODELS))
    parser.add_argument("--impls", default=";".join(IMPLS), help=f"semicolon-separated: {'; '.join(IMPLS)}")
    parser.add_argument("--peers", help="folder with mamba_ssm and causal_conv1d")
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "IMPL"), help="measure one row in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.peers)))
        return 0
    rows = options.results / ROWS
    failed = [] if options.plot_only else run(options.models.split(","), options.impls.split(";"), options.peers, rows)
    try:
        from draw_models import draw
    except ImportError:
        print("not drawn: no matplotlib here", flush=True)
    else:
        draw(rows)
    return 1 if failed else 0


def run(models: list[str], impls: list[str], peers: str | None, path: Path) -> list[str]:
    """Measure each row in its own process; returns those that failed."""
    from retrograd.bench.environment import stamp

    failed = []
    path.parent.mkdir(parents=True, exist_ok=True)
    for impl in impls:
        for model in models:
            began = time.perf_counter()
            command = [sys.executable, __file__, "--one", model, impl, *(["--peers", peers] if peers else [])]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                failed.append(f"{model} {impl}")
                print(f"{model} {impl}: failed\n{done.stderr[-1500:]}", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            now = stamp(row["gpu"])
            row |= {"commit": now.commit, "date": now.date}
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            speed = f"{row['device_ms']:9.1f} ms  {row['tokens_s']:9.0f} tokens/s  {row['peak_gib']:6.1f} GiB"
            took = f"{time.perf_counter() - began:.0f} s"
            print(f"{model:5} {impl:40} {speed}  {row['kernels']}  {row['losses']}  ({took})", flush=True)
    return failed


def measure(name: str, impl: str, peers: str | None) -> dict[str, Any]:
    """The row of one model and implementation."""
    import torch

    from retrograd.bench.environment import versions

    if impl == CUDA:
        if peers:
            sys.path.insert(0, peers)
        import causal_conv1d  # noqa: F401  # here a missing peer is an error, in transformers a warning
        import mamba_ssm.ops.selective_scan_interface  # noqa: F401
    torch.manual_seed(0)
    loss, parameters, kernels = (of_nn if impl in (NN, COMPILED) else of_transformers)(name, impl)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    slow = impl == SLOW
    batch = SLOW_BATCH[name] if slow else BATCH
    tokens = torch.randint(VOCABULARY, (batch, TIME), device="cuda")

    losses: list[torch.Tensor] = []

    def step() -> None:
        losses.append(loss(tokens))
        losses[-1].backward()
        losses[-1] = losses[-1].detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(0 if slow else WARM_UP):
        step()
    torch.cuda.reset_peak_memory_stats()
    ms = statistics.median(timed(step) for _ in range(1 if slow else STEPS))
    return {
        "op": "model",
        "case": f"mamba-{name}",
        "shape": {"B": batch, "T": TIME},
        "dtype": "bfloat16",
        "pass": "step",
        "impl": impl,
        "framework": "torch",
        "device_ms": round(ms, 2),
        "tokens_s": round(batch * TIME / ms * 1000),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "parameters": sum(p.numel() for p in parameters),
        "kernels": kernels,
        "losses": [round(float(value), 3) for value in losses[: WARM_UP + 1]],
        "gpu": torch.cuda.get_device_name(),
        "versions": versions(("torch", "triton", "transformers", *(PEERS if impl == CUDA else ()))),
    }


def timed(step: Callable[[], None]) -> float:
    """Milliseconds of one step, from an idle GPU until it is idle again."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def of_transformers(name: str, impl: str) -> tuple[Callable[[Any], Any], list[Any], str]:
    """Tokens -> loss, the parameters, and the module of the scan."""
    import torch

    if impl in (INSTALLED, PATCHED):
        import retrograd.compat

        retrograd.compat.install()
    from transformers import MambaConfig, MambaForCausalLM
    from transformers.models.mamba import modeling_mamba

    sizes = MODELS[name]
    config = MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=sizes["d_model"],
        num_hidden_layers=sizes["n_layer"],
        state_size=16,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = MambaForCausalLM(config).to(torch.bfloat16).train()
    if impl == PATCHED:
        import retrograd.compat.transformers

        retrograd.compat.transformers.patch(model)
    if impl == SLOW:
        model.gradient_checkpointing_enable()  # else (B, T, D, N) of every layer is saved: more than the GPU has
    scan = inspect.getclosurevars(modeling_mamba.mamba_selective_scan).nonlocals["implementation"]
    return lambda tokens: model(input_ids=tokens, labels=tokens).loss, list(model.parameters()), scan.__module__


def of_nn(name: str, impl: str) -> tuple[Callable[[Any], Any], list[Any], str]:
    """`of_transformers` for retrograd.nn."""
    import torch
    import torch.nn.functional as F

    from retrograd.nn import LanguageModel, MambaConfig

    model = LanguageModel(MambaConfig(**MODELS[name], vocab_size=VOCABULARY), device="cuda", dtype=torch.bfloat16)

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        after = F.pad(tokens[:, 1:], (0, 1), value=-100)  # as transformers shifts them
        return F.cross_entropy(model(tokens).float().flatten(0, 1), after.flatten(), ignore_index=-100)

    compiled = torch.compile(loss, fullgraph=True) if impl == COMPILED else loss
    return compiled, list(model.parameters()), "retrograd"


if __name__ == "__main__":
    sys.exit(main())
