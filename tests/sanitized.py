"""Small calls that run every kernel of an op, forward and backward, for the sanitizers.

`python tests/sanitized.py rms_norm` runs the calls of one op in PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from checks.contract import drawn
from ops import file_of

from retrograd.opinfo.cases import Case
from retrograd.ops.infos import NAMES, info
from retrograd.testing.draw import call, options


def cases(op: str) -> list[Case]:
    """The calls of an op: those of `tests/ops/<op>/sanitized.py`, or its cases that the interpreter takes."""
    one, calls = info(op), file_of(op, "sanitized")
    if calls is None:
        return one.tagged("interpreter")
    return [one.case(name) for name in calls.NAMED] + getattr(calls, "MORE", [])


def run(op: str, case: Case, function: Callable[..., Any] | None = None) -> None:
    """Run both passes; inputs are drawn on the CPU, so that few kernels run besides the op's."""
    inputs, gradients = drawn(info(op), case, "cpu", seed=0)
    arguments: dict[str, Any] = {name: tensor.cuda() for name, tensor in inputs.items()}
    results = call(function or info(op).torch, arguments, options(case), [gradient.cuda() for gradient in gradients])
    torch.cuda.synchronize()
    for name, result in results.items():
        wrong = (~result.cpu().isfinite()).nonzero()
        assert not len(wrong), (
            f"{op}, {case.name}: {name} is not finite at {len(wrong)} places, {wrong[:8].tolist()}, ..."
        )


if __name__ == "__main__":
    for op in sys.argv[1:] or NAMES:
        for one in cases(op):
            run(op, one)
            if one.name in getattr(file_of(op, "sanitized"), "WHOLE", ()):
                run(op, one, info(op).structures["whole sequences"](info(op)).torch)
            print(f"ran {op} {one.name}", flush=True)
        for step in getattr(file_of(op, "sanitized"), "STEPS", ()):  # of generation, in place
            step("cuda")
            torch.cuda.synchronize()
            print(f"ran {op} {step.__name__}", flush=True)
    print("finished", flush=True)
