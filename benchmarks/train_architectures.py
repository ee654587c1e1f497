"""`retrograd train` of every architecture, side by side: speed, bits per byte and memory.

    python benchmarks/train_architectures.py --preset cpu --device cpu --results benchmarks/results/cpu
    python benchmarks/train_architectures.py --preset gpu --device cuda --results DIR [--archs ...] [--frameworks ...]

Every run is a process of its own. A row is added to train_architectures.jsonl; the README of `retrograd.train` has the
table.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from own_process import add, measured  # noqa: E402

ROWS = "train_architectures.jsonl"
SETTLED = 20  # steps that are left out of the speed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--archs", default="mamba,mamba2,transformer,hybrid")
    parser.add_argument("--frameworks", default="torch")
    parser.add_argument("--steps", type=int, help="the preset's by default")
    parser.add_argument("--lr", type=float, help="the highest learning rate, the preset's by default")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--results", type=Path, default=Path("."))
    parser.add_argument("--one", nargs=2, metavar=("ARCH", "FRAMEWORK"), help="train one in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options, *options.one)))
        return 0
    failed = 0
    for framework in options.frameworks.split(","):
        for arch in options.archs.split(","):
            row = measured([__file__, *sys.argv[1:], "--one", arch, framework], f"{arch} {framework}")
            if row is None:
                failed += 1
                continue
            add(row, options.results / ROWS, row["on"])
            print(
                f"{arch:12} {framework:6} {row['parameters']:10,} parameters  {row['tokens_s']:9,} tokens/s  "
                f"{row['bits_per_byte']:.3f} bits per byte at lr {row['lr']:g}  {row['seconds']:5.0f} s  "
                f"{row['peak_gib']:.2f} GiB",
                flush=True,
            )
    return failed


def measure(options: argparse.Namespace, arch: str, framework: str) -> dict[str, Any]:
    """The row of one run."""
    from dataclasses import replace

    import torch

    from retrograd.bench.environment import versions
    from retrograd.train import Settings, Trainer, parameters, preset, reproducible, start, stdlib

    of = preset(options.preset, arch)
    of = replace(of, steps=options.steps or of.steps, lr=options.lr or of.lr)
    settings = Settings(
        name=options.preset,
        preset=of,
        source="",
        arch=arch,
        framework=framework,
        device=options.device,
        threads=options.threads,
    )
    speeds: list[float] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, reproducible(settings.threads):
        run = Path(folder) / "run"
        start(run, settings, stdlib())
        trainer = Trainer(run, settings)
        trainer.run(
            lambda row: speeds.append(row["tokens_per_s"]) if row.get("step", 0) > SETTLED and "loss" in row else None,
            lambda: False,
        )
        end = trainer.finish()
        size = parameters(trainer.model)
    on_gpu = options.device == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "case": f"train-{options.preset}",
        "arch": arch,
        "framework": framework,
        "parameters": size,
        "steps": of.steps,
        "lr": of.lr,
        "dtype": of.dtype,
        "tokens_s": round(statistics.median(speeds)),
        "bits_per_byte": round(end["held_out_bits_per_byte"], 4),
        "bigram_bits_per_byte": round(end["bigram_bits_per_byte"], 4),
        "seconds": round(time.perf_counter() - began, 1),
        "peak_gib": round(peak / 2**30, 3),
        "threads": options.threads,
        "on": torch.cuda.get_device_name() if on_gpu else "cpu",
        "versions": versions(("torch", *(("jax", "optax") if framework == "jax" else ()))),
    }


if __name__ == "__main__":
    sys.exit(main())
