"""The two backward algorithms of attention from T = 512 to 32768, with 16384 tokens or one row, H16, bf16, on this GPU.

    python3 benchmarks/attention_lengths.py [RESULTS]

Each is the whole backward pass as `benchmarks/gpu.py` times it. The table has milliseconds, and the MiB that the pass
needs beside its arguments and its gradients. Rows and their curves are written to RESULTS/attention_lengths.jsonl and
.png, the table to .txt, by default in benchmarks/results/<gpu>.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from retrograd.bench.drawing import draw_file
from retrograd.bench.environment import folder_name
from retrograd.bench.peers import Function, Peer
from retrograd.bench.results import LIMITS, Row, append, read
from retrograd.bench.run import gradients_like, own_function, results, run, wanted
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.attention.cases import bench
from retrograd.ops.infos import info
from retrograd.testing.draw import draw, leaves

LENGTHS = tuple(2**power for power in range(9, 16))
TOKENS = 16384
HEADS = 16
MASKS: tuple[tuple[str, dict[str, bool]], ...] = (("", {}), ("causal_", {"causal": True}))
ALGORITHMS = ("split", "fused")
MIB = 2**20


def case_of(length: int, D: int, mark: str, options: dict[str, bool]) -> Case:
    """A case of this length, whose letters leave out the rows, so that all lengths are one curve."""
    case = bench(max(1, TOKENS // length), length, HEADS, D, mark=mark, **options)
    return replace(case, name=f"{mark}T{length}_H{HEADS}_D{D}", shape={"T": length, "H": HEADS, "D": D})


def with_algorithm(op: OpInfo, algorithm: str, case: Case) -> Function:
    """The op with one of the algorithms."""
    return own_function(op, replace(case, options={**case.options, "backward": algorithm}))


def workspace(function: Function, case: Case) -> float:
    """MiB at the peak of a backward pass, beyond what is there before it and the gradients."""
    inputs = leaves(draw(case, "cuda", 0))
    returned = results(function, inputs)
    gradients = gradients_like(returned, 0)
    torch.autograd.grad(returned, wanted(inputs), gradients, retain_graph=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = torch.autograd.grad(returned, wanted(inputs), gradients, retain_graph=True)
    return (torch.cuda.max_memory_allocated() - before - sum(g.nbytes for g in found)) / MIB


def table(rows: list[Row], memory: dict[tuple[str, str], float]) -> list[str]:
    """Milliseconds and MiB by case and algorithm."""
    times = {(row.case, row.impl): row.device_ms for row in rows if row.pass_ == "bwd" and row.device_ms is not None}
    lines = [f"{'':24}" + "".join(f"{name:>14}{'MiB':>10}" for name in ALGORITHMS)]
    for case in dict.fromkeys(case for case, _ in times):
        cells = (f"{times[case, name]:11.3f} ms{memory[case, name]:10.1f}" for name in ALGORITHMS)
        lines.append(f"{case:24}" + "".join(cells))
    return lines


def main() -> int:
    op = info("attention")
    cases = [case_of(length, D, mark, options) for D in (64, 128) for mark, options in MASKS for length in LENGTHS]
    functions = {name: partial(with_algorithm, op, name) for name in ALGORITHMS}
    default = Path(__file__).parent / "results" / folder_name(torch.cuda.get_device_name())
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    path = folder / "attention_lengths.jsonl"
    path.unlink(missing_ok=True)

    def emit(row: Row) -> None:
        if row.op == LIMITS or (row.pass_ == "bwd" and row.device_ms is not None and row.impl in ALGORITHMS):
            append(path, row)

    peers = [Peer(name, build, "torch") for name, build in functions.items()]
    failed = run(op, cases, peers, emit, partial(print, flush=True))
    memory = {(case.name, name): workspace(build(case), case) for case in cases for name, build in functions.items()}
    text = "\n".join(table([row for row in read(path) if row.op != LIMITS], memory))
    path.with_suffix(".txt").write_text(text + "\n")
    print(text, flush=True)
    draw_file(path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
