"""The GPU contract and the benchmarks of ops: `make gpu OP=rms_norm`.

It needs only the kernels' requirements and pytest, no command line package and no pandas. Every row is written as soon
as it is measured. If an op's contract is red, its rows are written to `<op>.red.jsonl`: the speed of a wrong kernel
must not be quoted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="+", metavar="op")
    parser.add_argument("--results", type=Path, help="folder for the results; benchmarks/results/<gpu> by default")
    parser.add_argument("--cases", help="patterns of case names, comma-separated; by default all, in jax fewer")
    parser.add_argument("--peers", help="peers, comma-separated, '' for none; in torch alone without --framework")
    parser.add_argument("--no-tests", action="store_true", help="skip the contract; the rows count as red")
    parser.add_argument("--contract", type=Path, help="contract.json of an earlier run of this code, used instead")
    parser.add_argument("--no-bench", action="store_true", help="only the contract")
    parser.add_argument("--jobs", type=int, default=8, help="processes that share the GPU in the contract")
    parser.add_argument("--framework", choices=("torch", "jax"), help="only measure one op in this framework")
    parser.add_argument("--rows", help="file name of the rows; with --framework")
    arguments = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        print("gpu.py: PyTorch sees no GPU here", file=sys.stderr)
        return 2
    from retrograd.bench.drawing import draw_file
    from retrograd.bench.environment import folder_name
    from retrograd.ops.infos import NAMES

    for op in arguments.ops:
        if op not in NAMES:
            print(f"gpu.py: op is {op!r}, expected one of {', '.join(NAMES)}", file=sys.stderr)
            return 2
    folder = arguments.results or ROOT / "benchmarks" / "results" / folder_name(torch.cuda.get_device_name())
    folder = folder.resolve()
    if arguments.framework:
        return measure(arguments, folder / (arguments.rows or f"{arguments.ops[0]}.jsonl"))

    folder.mkdir(parents=True, exist_ok=True)
    if arguments.no_tests:
        red = set(arguments.ops)
    elif arguments.contract:
        red = ops_not_green(arguments.contract, arguments.ops)
    else:
        red = red_ops(arguments.ops, arguments.jobs, folder / "failures.txt")
        verdict = {"code": tested_code(), "green": [op for op in arguments.ops if op not in red]}
        (folder / "contract.json").write_text(json.dumps(verdict) + "\n")
    print(f"contract: red {', '.join(sorted(red)) or 'none'}", flush=True)
    if arguments.no_bench:
        return 1 if red else 0
    frameworks = ["torch", *(["jax"] if importlib.util.find_spec("jax") else [])]
    cases = ["--cases", arguments.cases] if arguments.cases else []
    peers = [] if arguments.peers is None else ["--peers", arguments.peers]
    rows = {op: folder / f"{op}{'.red' if op in red else ''}.jsonl" for op in arguments.ops}
    for path in rows.values():
        path.unlink(missing_ok=True)
    measured = []
    for framework in frameworks:
        for op, path in rows.items():
            command = [sys.executable, __file__, op, "--results", str(folder), "--rows", path.name, *cases]
            own = ["--framework", framework, *(peers if framework == "torch" else [])]
            measured.append(step(f"{op} in {framework}", [*command, *own]))
    for path in filter(Path.exists, rows.values()):
        draw_file(path)
    print(f"rows: {', '.join(map(str, rows.values()))}", flush=True)
    return 0 if not red and all(measured) else 1


def red_ops(ops: list[str], jobs: int, failures: Path) -> set[str]:
    """Run the contract of these ops; returns the ops with failures, or all if a failure names no op.

    The failures are written to the file `failures`; without failures there is no file.
    """
    failures.unlink(missing_ok=True)
    # Compilation takes most of the contract's time, so several processes share the GPU.
    several = ["-n", str(jobs), "--dist", "worksteal"] if importlib.util.find_spec("xdist") else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = ["-m", "gpu and not slow", "-k", " or ".join(map(selection, ops)), "-q", f"--junitxml={report}"]
        if step("contract", [sys.executable, "-m", "pytest", *tests, *several]):
            return set()
        if not report.exists():
            return set(ops)
        failed = {
            f"{case.get('classname')} {case.get('name')}": failure.text or ""
            for case in ElementTree.parse(report).iter("testcase")
            for failure in (*case.iter("failure"), *case.iter("error"))
        }
    failures.write_text("\n\n".join(f"== {name}\n{text}" for name, text in failed.items()))
    named = [{op for op in ops if is_of(op, name)} for name in failed]
    return set().union(*named) if named and all(named) else set(ops)


def selection(op: str) -> str:
    """The expression of pytest for an op's tests, without those of an op whose name begins with its own."""
    return f"({' and not '.join([op, *longer])})" if (longer := longer_names(op)) else op


def is_of(op: str, test: str) -> bool:
    """Whether a test is one of an op's."""
    for name in longer_names(op):
        test = test.replace(name, "")
    return op in test


def longer_names(op: str) -> list[str]:
    """The ops whose names begin with an op's."""
    from retrograd.ops.infos import NAMES

    return [name for name in NAMES if name != op and name.startswith(op)]


def ops_not_green(path: Path, ops: list[str]) -> set[str]:
    """The ops that are not green in an earlier run of the contract on the same code."""
    verdict = json.loads(path.read_text())
    return set(ops) - set(verdict["green"] if verdict["code"] == tested_code() else ())


def tested_code() -> str:
    """A digest of what a verdict is about: the sources of the tests, and of the package but for its benchmarks."""
    digest = sha256()
    for path in sorted([*(ROOT / "retrograd").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        name = path.relative_to(ROOT)
        if name.parts[:2] != ("retrograd", "bench"):
            digest.update(f"{name.as_posix()}\n{path.read_text()}\n".encode())
    return digest.hexdigest()[:16]


def step(name: str, command: list[str]) -> bool:
    """Run a command in its own process, so that a broken GPU context affects nothing else."""
    print(f"== {name}", flush=True)
    start = time.perf_counter()
    status = subprocess.run(command, cwd=ROOT).returncode
    print(f"== {name}: status {status}, {time.perf_counter() - start:.0f} s", flush=True)
    return status == 0


def measure(arguments: argparse.Namespace, path: Path) -> int:
    """Measure in one framework; 1 if retrograd failed on a case."""
    import torch

    from retrograd.bench.ahead import compile_ahead
    from retrograd.bench.results import Row, Speeds, append, line
    from retrograd.bench.selection import bench_cases, chosen_peers, sparse
    from retrograd.core.torch.launch import arch_of
    from retrograd.ops.infos import info

    op = info(arguments.ops[0])
    cases = bench_cases(op, arguments.cases.split(",") if arguments.cases else ("*",))
    framework = arguments.framework
    if framework == "jax":
        from retrograd.bench.run_jax import run

        if not arguments.cases:
            cases = sparse(op, cases)
    else:
        from retrograd.bench.run import run
    if arch := arch_of(torch.device("cuda")):
        compile_ahead(op, cases, arch)
    names = None if arguments.peers is None else [name for name in arguments.peers.split(",") if name]
    rows: list[Row] = []

    def emit(row: Row) -> None:
        rows.append(row)
        append(path, row)
        print(line(row, Speeds(rows)), flush=True)

    failed = run(op, cases, chosen_peers(op.name, framework, names), emit, lambda text: print(text, flush=True))
    if failed:
        print(f"retrograd itself failed on {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
