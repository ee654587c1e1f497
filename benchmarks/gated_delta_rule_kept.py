"""What gated_delta_rule keeps for the backward pass on a GPU of sm_90, against the time of both passes.

    python3 benchmarks/gated_delta_rule_kept.py [--cases 'B1_T8192*'] [--peers fla]

Ours keeps the inverse and the scores of blocks, together as many bytes as v, and a state every 128 steps, as many
again; with a decay for each channel every 1,024. Lines with other numbers of states are of the same kernels: backward,
those between two kept ones are computed again, from one of every 1,024 steps on. For each line: bytes that autograd
holds beside arguments and results, over the bytes of v; the most bytes in use in both passes, over those before, also
in units of v; and milliseconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from ssd_kept import measured

from retrograd.bench.peers import Peer, native
from retrograd.bench.results import Row
from retrograd.bench.run import own_function, run
from retrograd.bench.selection import bench_cases, chosen_peers
from retrograd.core.dtypes import BYTES
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.gated_delta_rule.op import Spec
from retrograd.ops.infos import info
from retrograd.testing.draw import draw, leaves

NAME = "gated_delta_rule"
STEPS = (128, 256, 512, 1024)


def keeping(steps: int) -> type[Spec]:
    """Calls that keep a state every so many steps, a divisor of 1,024."""

    @dataclass(frozen=True)
    class Sparse(Spec):
        @property
        def chunk(self) -> int:
            return steps

    return Sparse


def lines(case: Case, peers: list[str]) -> Iterator[str]:
    """A case's lines."""
    op = info(NAME)
    yield f"{case.name:36}{'kept / v':>10}{'peak / v':>10}{'forward':>10}{'backward':>10} ms"
    for steps in STEPS:
        ours = op.variant(call=keeping(steps))
        yield line(f"a state every {steps} steps", case, Peer(op.label, partial(own_function, ours)), times(ours, case))
    for peer in chosen_peers(NAME, "torch", peers):
        yield line(peer.name, case, peer, times(op, case, peer.name))


def times(op: OpInfo, case: Case, peer: str | None = None) -> list[float]:
    """The milliseconds of each pass, of an implementation that runs the case."""
    rows: list[Row] = []
    run(op, [case], chosen_peers(NAME, "torch", [peer] if peer else []), rows.append, partial(print, flush=True))
    own = (row for row in rows if row.op == op.name and row.impl == (peer or op.label))
    return [row.device_ms for row in own if row.device_ms is not None]


def line(name: str, case: Case, peer: Peer, ms: list[float]) -> str:
    """One line."""
    own = native(peer.build(case))
    inputs = leaves(own.prepare(draw(case, "cuda", 0)))
    measured(own.call, inputs)  # so that one-time allocations are not counted
    v = case.inputs["v"]
    kept, most = (size / (prod(v.shape) * BYTES[v.dtype]) for size in measured(own.call, inputs))
    return f"{name:36}{kept:10.2f}{most:10.2f}" + "".join(f"{each:10.3f}" for each in ms)


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes that gated_delta_rule keeps, against time.")
    parser.add_argument("--cases", default="*", help="patterns of case names, comma-separated")
    parser.add_argument("--peers", default="", help="peers, comma-separated")
    options = parser.parse_args()
    print(f"benchmarks/gated_delta_rule_kept.py: {torch.cuda.get_device_name()}", flush=True)
    for case in bench_cases(info(NAME), options.cases.split(",")):
        for found in lines(case, [name for name in options.peers.split(",") if name]):
            print(found, flush=True)


if __name__ == "__main__":
    main()
