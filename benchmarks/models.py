"""Whole training steps of language models, with random weights, on a GPU.

    python benchmarks/models.py [--results DIR] [--models 'mamba-130m;...'] [--impls ...] [--peers DIR] [--profiles DIR]
    python benchmarks/models.py --plot-only --results DIR

A step is forward, loss, backward, AdamW and clearing the gradients, on B * T = 16384 tokens, parameters and activations
in bf16. Each row is measured in a process of its own. `--peers` is a folder with mamba_ssm and causal_conv1d, see
benchmarks/README.md. `--together 2` prepares two rows side by side, which is most of the time of a compiled one; steps
are timed while no other process works.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from model_shapes import IMPLS, MODELS  # noqa: E402
from own_process import Row, add, side_by_side  # noqa: E402

ROWS = "models.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("."), help="folder of models.jsonl and models.png")
    parser.add_argument("--models", default=";".join(MODELS), help=f"semicolon-separated: {'; '.join(MODELS)}")
    parser.add_argument("--impls", default=";".join(IMPLS), help=f"semicolon-separated: {'; '.join(IMPLS)}")
    parser.add_argument("--peers", help="folder with mamba_ssm and causal_conv1d")
    parser.add_argument("--profiles", help="folder for the time of every kernel of a step, a file for each row")
    parser.add_argument("--together", type=int, default=1, help="rows that are prepared side by side")
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "IMPL"), help="measure one row in this process")
    options = parser.parse_args()
    if options.one:
        from model_step import measure

        measure(*options.one, options.peers, options.profiles)
        return 0
    rows = options.results / ROWS
    failed = [] if options.plot_only else run(options, rows)
    try:
        from draw_models import draw
    except ImportError:
        print("not drawn: no matplotlib here", flush=True)
    else:
        if rows.exists():
            draw(rows)
    return 1 if failed else 0


def run(options: argparse.Namespace, path: Path) -> list[str]:
    """Measure each row in its own process; returns those that failed."""
    models, impls = options.models.split(";"), options.impls.split(";")
    wanted = [(model, impl) for model in models for impl in impls if model in IMPLS[impl]]
    passed_on = [f"--{name}={value}" for name in ("peers", "profiles") if (value := getattr(options, name))]
    failed = []
    for first in range(0, len(wanted), options.together):
        group = wanted[first : first + options.together]
        for name, row in side_by_side({" ".join(one): [__file__, "--one", *one, *passed_on] for one in group}):
            if row is None:
                failed.append(name)
            else:
                report(row, path)
    return failed


def report(row: Row, path: Path) -> None:
    """Add a row to a file, and print it."""
    add(row, path, row["gpu"])
    speed = f"{row['device_ms']:9.1f} ms  {row['tokens_s']:9.0f} tokens/s  {row['peak_gib']:6.1f} GiB"
    first = f"first step {row['first_step_s']:.0f} s"
    print(f"{row['case']:14} {row['impl']:36} {speed}  {row['losses']}  {first}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
