"""Small calls that run every kernel of an op, forward and backward, for the sanitizers.

`python tests/sanitized.py rms_norm` runs the calls of one op in PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from retrograd.opinfo.cases import Case
from retrograd.ops.infos import NAMES, info
from retrograd.ops.selective_scan.cases import ALL, MAMBA, case
from retrograd.ops.ssd import cases as ssd
from retrograd.testing.contract import drawn
from retrograd.testing.draw import call, options

# Of another op all cases that are small enough for the interpreter.
NAMED = {
    "rms_norm": ("plain", "prenorm", "qk_norm_bias", "hidden_768", "looped_backward", "looped"),
    "causal_conv1d": ("silu", "one_channel", "states", "packed_states", "short"),
    "linear_scan": ("plain", "states", "shared_both", "packed", "packed_shared", "complex", "long"),
    "selective_scan": ("mamba_fp32", "most_states", "packed", "constant_B"),
    "ssd": ("one_head", "one_step"),
    "attention": (
        "plain",
        "window",
        "bias",
        "sinks",
        "packed_gaps",
        "wide_values",
        "everything",
        "fused_packed",
        "segments_tiles",
        "size_64_packed",
        "size_128_window",
        "size_192_128",
    ),
}
WHOLE = "whole sequences"
# The Gluon kernels of selective_scan, in spans and on whole sequences, with enough chunks to refill every buffer.
GLUON: list[Case] = [
    case("gluon_8", (1, 70, 128, 8), given={"z"}, dtype="float16", return_final_state=True),
    case("gluon_16", (1, 140, 64, 16), given=MAMBA),
    case("gluon_16_groups", (1, 70, 128, 16), groups=2, dtype="float32", **ALL),
    case("gluon_32", (1, 200, 32, 32), given=MAMBA),
    case("gluon_64", (1, 270, 32, 64), **ALL),
    case("gluon_packed", (1, 180, 64, 16), cu_seqlens=(3, 4, 4, 80, 170), **ALL),
]
# Few heads, in full and partial tiles; a group of more heads than one program computes.
SSD: list[Case] = [
    ssd.case("tiles", (1, 150, 2, 64, 1, 128)),
    ssd.case("not_full", (1, 270, 2, 72, 2, 136), dtype="float16", wide_D=True, **ssd.ALL),
    ssd.case("single", (1, 140, 1, 40, 1, 40), dtype="float32", **ssd.ALL),
    ssd.case("packed_gaps", (1, 180, 2, 64, 1, 64), cu_seqlens=(3, 4, 4, 140, 170), **ssd.ALL),
    ssd.case("many_heads", (2, 70, 36, 16, 2, 16), given=ssd.MAMBA | {"z"}),
]
# The Hopper kernels, in spans and on whole sequences: an odd number of slices, and enough blocks to refill every
# buffer.
HOPPER: list[Case] = [
    ssd.case("hopper", (1, 530, 3, 64, 1, 128), initial_state=True, return_final_state=True),
    ssd.case("hopper_256", (1, 530, 2, 64, 1, 256), cu_seqlens=(3, 4, 4, 270, 520), initial_state=True),
    ssd.case("hopper_packed", (1, 530, 2, 128, 1, 64), cu_seqlens=(3, 4, 4, 270, 520), dtype="float16"),
]
MORE = {"selective_scan": GLUON, "ssd": SSD + HOPPER}


def cases(op: str) -> list[Case]:
    """The calls of an op."""
    one = info(op)
    named = [one.case(name) for name in NAMED[op]] if op in NAMED else one.tagged("interpreter")
    return named + MORE.get(op, [])


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
            if one in GLUON + HOPPER:
                run(op, one, info(op).structures[WHOLE](info(op)).torch)
            print(f"ran {op} {one.name}", flush=True)
    print("finished", flush=True)
