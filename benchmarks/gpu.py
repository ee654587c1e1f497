"""The GPU contract and the benchmarks of an op, in one go: `make gpu OP=rms_norm`.

It needs what the kernels need and pytest; no command line package, no pandas. Every row is written as soon as it is
measured. Where the contract is red the rows go to `<op>.red.jsonl`: a speed is never quoted for a kernel that is wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op")
    parser.add_argument("--results", type=Path, help="folder for the results; benchmarks/results/<gpu> by default")
    parser.add_argument("--cases", help="patterns of case names, with commas; by default all, in jax one a width")
    parser.add_argument("--peers", help="peers in torch, with commas; all by default")
    parser.add_argument("--no-tests", action="store_true", help="leave the contract out; the rows count as red")
    parser.add_argument("--framework", choices=("torch", "jax"), help="only measure, in this one")
    parser.add_argument("--rows", help="file name of the rows; with --framework")
    arguments = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        print("gpu.py: PyTorch sees no GPU here", file=sys.stderr)
        return 2
    from retrograd.bench.environment import folder_name
    from retrograd.ops.rooms import NAMES

    if arguments.op not in NAMES:
        print(f"gpu.py: op is {arguments.op!r}, expected one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    folder = arguments.results or ROOT / "benchmarks" / "results" / folder_name(torch.cuda.get_device_name())
    folder = folder.resolve()
    if arguments.framework:
        return measure(arguments, folder / (arguments.rows or f"{arguments.op}.jsonl"))

    folder.mkdir(parents=True, exist_ok=True)
    # Most of the contract's time is the compiler's, so several processes share the GPU.
    several = ["-n", "8"] if importlib.util.find_spec("xdist") else []
    green = not arguments.no_tests and step("contract", [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *several])
    rows = f"{arguments.op}{'' if green else '.red'}.jsonl"
    (folder / rows).unlink(missing_ok=True)
    frameworks = ["torch", *(["jax"] if importlib.util.find_spec("jax") else [])]
    again = [sys.executable, __file__, *sys.argv[1:], "--results", str(folder), "--rows", rows, "--framework"]
    measured = [step(framework, [*again, framework]) for framework in frameworks]
    draw(folder / rows)
    print(f"rows: {folder / rows}", flush=True)
    return 0 if green and all(measured) else 1


def step(name: str, command: list[str]) -> bool:
    """Run a command in a process of its own, so that one that breaks the GPU's context breaks nothing else."""
    print(f"== {name}", flush=True)
    start = time.perf_counter()
    status = subprocess.run(command, cwd=ROOT).returncode
    print(f"== {name}: status {status}, {time.perf_counter() - start:.0f} s", flush=True)
    return status == 0


def measure(arguments: argparse.Namespace, path: Path) -> int:
    """Measure in one framework; 1 if retrograd failed on a case."""
    from retrograd.bench.results import Row, Speeds, append, line
    from retrograd.bench.selection import bench_cases, chosen_peers, thinned
    from retrograd.ops.rooms import room

    op = room(arguments.op)
    cases = bench_cases(op, arguments.cases.split(",") if arguments.cases else ("*",))
    framework = arguments.framework
    if framework == "jax":
        from retrograd.bench.run_jax import run

        if not arguments.cases:
            few = thinned(op, cases)
            cases = [case for case in cases if case.name in few]
    else:
        from retrograd.bench.run import run
    names = arguments.peers.split(",") if arguments.peers and framework == "torch" else None
    rows: list[Row] = []

    def emit(row: Row) -> None:
        rows.append(row)
        append(path, row)
        print(line(row, Speeds(rows)), flush=True)

    failed = run(op, cases, chosen_peers(op.name, framework, names), emit, lambda text: print(text, flush=True))
    if failed:
        print(f"retrograd itself failed on {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def draw(path: Path) -> None:
    """Draw the rows, where matplotlib is there; `retrograd bench --plot-only` does it elsewhere."""
    if importlib.util.find_spec("matplotlib") is None or not path.exists():
        return
    from retrograd.bench.plot import draw
    from retrograd.bench.results import read

    draw(read(path), path.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
