"""The time of a generated token, on a GPU; beside it prefill and a training step, with and without exact sums.

    python benchmarks/generate.py [--results DIR] [--peers DIR] [--models mamba,...] [--impls ...] [--batches 1,64]
    python benchmarks/generate.py --tiny                # small models, on a CPU too
    python benchmarks/generate.py --plot-only --results DIR

Random weights in bf16, random prompts, the likeliest token each time. Each row is measured in a process of its own;
`--together` of them prepare side by side, and measure while no other works. `--peers` is a folder with mamba_ssm and
causal_conv1d, see benchmarks/README.md, which has what a row is, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from generation_shapes import (  # noqa: E402
    EXACT,
    FULL,
    IMPLS,
    LIMITS,
    MODELS,
    NN,
    PASSES,
    PREFILL,
    TINY,
    TOKEN,
    TRAIN,
    Job,
    Setting,
)
from own_process import Row, add, ready, side_by_side  # noqa: E402

ROWS = "generate.jsonl"
TRAINED_TOGETHER = 2  # a training step of two models needs most of the memory of a smaller GPU


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("."), help="folder of generate.jsonl and generate.png")
    parser.add_argument("--passes", default=",".join(PASSES), help=", ".join(PASSES))
    parser.add_argument("--models", default=",".join(MODELS), help=", ".join(MODELS))
    parser.add_argument("--impls", default=";".join(IMPLS), help=f"semicolon-separated: {'; '.join(IMPLS)}")
    parser.add_argument("--batches", help="comma-separated; 1,64 by default")
    parser.add_argument("--peers", help="folder with mamba_ssm and causal_conv1d")
    parser.add_argument("--together", type=int, default=8, help="rows that are prepared side by side")
    parser.add_argument("--seconds", type=float, default=4.0, help="no further run of a row begins after this time")
    parser.add_argument("--deadline", type=float, default=570.0, help="seconds after which nothing is measured")
    parser.add_argument("--tiny", action="store_true", help="small models and few tokens")
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--one", nargs=4, metavar=("PASS", "MODEL", "IMPL", "BATCH"), help="measure in this process")
    options = parser.parse_args()
    setting = TINY if options.tiny else FULL
    if options.one:
        from generation_row import rows

        which, model, impl, batch = options.one
        for row in rows(Job(which, model, impl, int(batch)), setting, options.seconds, options.peers, ready):
            print(json.dumps(row), flush=True)
        return 0
    path = options.results / ROWS
    failed = [] if options.plot_only else run(options, setting, path)
    try:
        from draw_generation import draw
    except ImportError:
        print("not drawn: no matplotlib here", flush=True)
    else:
        if path.exists():
            draw(path)
    return 1 if failed else 0


def run(options: argparse.Namespace, setting: Setting, path: Path) -> list[str]:
    """Measure every job in its own process; returns those that failed or were left out."""
    passed_on = [f"--seconds={options.seconds}", *(["--peers", options.peers] if options.peers else [])]
    passed_on += ["--tiny"] if options.tiny else []
    end = time.monotonic() + options.deadline
    failed: list[str] = []
    rate: float | None = None  # bytes a millisecond
    for group in groups(jobs(options, setting), options.together):
        if (left := end - time.monotonic()) <= 0:
            print(f"no time was left for {'; '.join(map(str, group))}", file=sys.stderr, flush=True)
            failed += map(str, group)
            continue
        commands = {
            str(job): [__file__, "--one", job.which, job.model, job.impl, str(job.batch), *passed_on] for job in group
        }
        for name, row in side_by_side(commands, left):
            if row is None:
                failed.append(name)
                continue
            if row["op"] == LIMITS:
                rate = 2 * row["shape"]["bytes"] / row["device_ms"]
            report(with_limit(row, rate), path)
    return failed


def jobs(options: argparse.Namespace, setting: Setting) -> Iterator[Job]:
    """What is measured, in this order: what matters most comes first."""
    passes, models = options.passes.split(","), options.models.split(",")
    impls = options.impls.split(";")
    batches = [int(batch) for batch in options.batches.split(",")] if options.batches else setting.batches
    for names, known in ((passes, PASSES), (models, MODELS), (impls, IMPLS)):
        if unknown := set(names) - set(known):
            raise SystemExit(f"{', '.join(sorted(unknown))}: not known, expected some of {', '.join(known)}")
    yield Job(LIMITS, "", "", 1)
    if TOKEN in passes:
        for impl in impls:
            own = [model for model in IMPLS[impl] if model in models]
            yield from (Job(TOKEN, model, impl, batch) for batch in batches for model in own)
    if TRAIN in passes:
        yield from (Job(TRAIN, model, "", setting.train[0]) for model in models)
    if PREFILL in passes:
        for impl in (NN, EXACT):
            yield from (Job(PREFILL, model, impl, 1) for model in models if impl in impls)


def groups(wanted: Iterator[Job], together: int) -> Iterator[list[Job]]:
    """Jobs that prepare side by side; tokens of one implementation, so that not all large caches are there at once."""
    first = next(wanted)  # the rate of a copy: prepared beside others, and measured before them
    before = [first]
    for (which, _), same in groupby(wanted, lambda job: (job.which, job.impl if job.which == TOKEN else "")):
        own = list(same)
        most = min(together, TRAINED_TOGETHER) if which == TRAIN else together
        for start in range(0, len(own), most):
            yield before + own[start : start + most]
            before = []
    if before:
        yield before


def with_limit(row: Row, rate: float | None) -> Row:
    """The row with the time that its bytes take at the rate of a copy, and this time's share of the measured one."""
    if rate is None or "bytes" not in row:
        return row
    limit = row["bytes"] / rate
    return row | {"limit_ms": float(f"{limit:.4g}"), "share": round(limit / row["wall_ms"], 4)}


def report(row: Row, path: Path) -> None:
    """Add a row to a file, and print it."""
    add(row, path, row["gpu"])
    shape = ", ".join(f"{name} {size}" for name, size in row["shape"].items())
    known = {
        "device": "device_ms",
        "limit": "limit_ms",
        "share": "share",
        "forward": "forward_ms",
        "over forward": "over_forward",
        "on the device": "device_over_forward",
        "over not exact": "over_not_exact",
    }
    more = "  ".join(f"{name} {row[field]}" for name, field in known.items() if row.get(field) is not None)
    wall = f"{row['wall_ms']:9.3f} ms  " if "wall_ms" in row else ""
    print(f"{row['pass']:8} {row['case']:12} {row['impl']:26} {shape:42} {wall}{more}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
