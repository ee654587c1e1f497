"""Times the plans of attention's Hopper kernels on a GPU, in TFLOP/s of whole passes, beside peers.

python benchmarks/tune_attention_hopper.py [--cases PATTERNS] [--peers NAMES] [--only PATTERNS]. Each line has a case, a
pass and a plan: `plan`, or the fields in which another plan differs; then two readings, the second one after all plans
had their first, since the first reading after a pause is often the fastest. A plan whose results differ from those of
`plan`, or from its own at a second call, is told. The op's `hopper/plan.py` is written from such tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.bench.ahead import compile_programs
from retrograd.bench.measure import device_ms
from retrograd.bench.peers import Function, NotApplicableError, native
from retrograd.bench.run import difference, gradients_like, own_function, results, wanted
from retrograd.bench.selection import chosen_peers, sets_for
from retrograd.core.arch import SUPPORTED
from retrograd.core.spec import Pass
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.attention.hopper.plan import ForwardPlan
from retrograd.ops.infos import info
from retrograd.testing.draw import draw, leaves

Fields = Mapping[str, Any]
CASES = (
    "B4_T4096_H24_D128", "causal_B4_T4096_H24_D128", "B4_T4096_H24_D64", "causal_B4_T4096_H24_D64",
    "causal_B1_T16384_H32_G8_D128", "causal_B16_T1024_H24_D128", "causal_B4_T4096_H16_D256",
    "causal_B4_T4096_H16_D192_V128", "window_B4_T4096_H24_D128", "softcap_B4_T4096_H24_D128",
    "packed_B1_T131328_H16_D128", "B16_T328_H24_D64", "B16_T328_H24_D128", "B1_T32768_H2_D64", "B1_T32768_H2_D128",
)  # fmt: skip
# Width of the queries -> fields of other plans.
FORWARD: dict[int, tuple[Fields, ...]] = {
    64: ({"beside": False}, {"by_warps": True}, {"groups": 2, "registers": 232}, {"groups": 3, "registers": 160}),
    128: ({"by_warps": True}, {"section": 2**24}),
    192: ({"by_warps": False},),
    256: ({"by_warps": False},),
}
BACKWARD: dict[int, tuple[Fields, ...]] = {
    64: (),
    128: ({"section": 2**24}, {"section": 2**26}),
    192: ({"section": 2**25}, {"section": 2**27}),
    256: ({"section": 2**26},),
}


def variants(case: Case) -> Iterator[tuple[Pass, Fields]]:
    """The passes of a case and the fields of other plans; none for the plan itself."""
    for which, table in (("fwd", FORWARD), ("bwd", BACKWARD)):
        for fields in ({}, *table[case.shape["D"]]):
            yield which, fields


def with_plan(which: Pass, fields: Fields) -> OpInfo:
    """The op with other values in the plans of a pass."""

    def replan(plan: Any) -> Any:
        return replace(plan, **fields) if isinstance(plan, ForwardPlan) == (which == "fwd") else plan

    return info("attention").variant(only="hopper", replan=replan)


def compile_variant(name: str, which: Pass, fields: Fields) -> None:
    """Compile the kernels of a variant, into the cache; what does not compile is reported when it is timed."""
    with suppress(Exception):
        compile_programs(with_plan(which, fields), info("attention").case(name), SUPPORTED["sm_90"])


class Work:
    """A case with its inputs and the results of the plan itself."""

    def __init__(self, case: Case) -> None:
        torch.cuda.empty_cache()
        self.case = case
        self.sets = [leaves(draw(case, "cuda", seed)) for seed in range(sets_for(info("attention"), case))]
        self.expected: dict[Pass, list[Tensor]] = {}

    def report(self, which: Pass, functions: Mapping[str, Function]) -> None:
        """Print a line for each function of a pass."""
        times: dict[str, list[float]] = {name: [] for name in functions}
        notes = dict.fromkeys(functions, "")
        for _round in range(2):
            for name, function in functions.items():
                try:
                    calls = self.calls(which, native(function).call)
                    notes[name] = notes[name] or self.check(which, calls[0])
                    times[name].append(device_ms(calls))
                except Exception as error:
                    notes[name] = f" {type(error).__name__} {str(error)[:200]!r}"
        for name, own in times.items():
            speeds = (f"{info('attention').flops(self.case, which) / ms / 1e9:.0f}" for ms in own)
            ms = " ".join(f"{each:.3f}" for each in own)
            print(f"{self.case.name} {which} {name}: {ms} ms, {' '.join(speeds)} TFLOP/s{notes[name]}", flush=True)

    def check(self, which: Pass, call: Callable[[], list[Tensor]]) -> str:
        """What is wrong with a function's results."""
        found, again = call(), call()
        expected = self.expected.setdefault(which, found)
        wrong = max(difference(a, b) for a, b in zip(found, expected, strict=True))
        same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
        return ("" if same else " OTHER BITS AGAIN") + (f" DIFFERS BY {wrong:.0e}" if not wrong < 0.01 else "")

    def calls(self, which: Pass, function: Function) -> list[Callable[[], list[Tensor]]]:
        """A call of the pass for each set of inputs."""
        if which == "fwd":

            def forward(inputs: Mapping[str, Tensor]) -> list[Tensor]:
                with torch.no_grad():
                    return results(function, inputs)

            return [partial(forward, inputs) for inputs in self.sets]

        def backward(returned: list[Tensor], inputs: Mapping[str, Tensor], gradients: list[Tensor]) -> list[Tensor]:
            return list(torch.autograd.grad(returned, wanted(inputs), gradients, retain_graph=True))

        made = [(results(function, inputs), inputs) for inputs in self.sets]
        return [partial(backward, out, x, gradients_like(out, seed)) for seed, (out, x) in enumerate(made)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="patterns of case names")
    parser.add_argument("--peers", default="cudnn", help="names of peers; none if empty")
    parser.add_argument("--only", default="*", help="patterns of plans' names")
    arguments = parser.parse_args()

    def chosen(name: str, patterns: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns.split(","))

    cases = [info("attention").case(name) for name in CASES if chosen(name, arguments.cases)]
    tried = [
        (case, which, fields)
        for case in cases
        for which, fields in variants(case)
        if not fields or chosen(str(dict(fields)), arguments.only)
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        names = ((case.name, which, fields) for case, which, fields in tried)
        list(pool.map(compile_variant, *zip(*names, strict=True)))
    peers = chosen_peers("attention", "torch", arguments.peers.split(",") if arguments.peers else [])
    # A backward pass runs on the stream of its forward pass, and the default stream cannot be captured in a CUDA graph.
    with torch.cuda.stream(torch.cuda.Stream()):
        for case in cases:
            work = Work(case)
            others = {"triton": own_function(info("attention").variant(only="triton"), case)}
            for peer in peers:
                with suppress(NotApplicableError):
                    others[peer.name] = native(peer.build(case)).call
            passes: tuple[Pass, ...] = ("fwd", "bwd")
            for which in passes:
                own = {
                    str(dict(fields)) if fields else "plan": own_function(with_plan(which, fields), case)
                    for each, its, fields in tried
                    if each is case and its == which
                }
                work.report(which, {**own, **others})


if __name__ == "__main__":
    main()
