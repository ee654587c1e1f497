"""Times the tiles of ssd's Triton kernels (not those for Hopper) on a GPU: microseconds a kernel, by a profiler.

python benchmarks/tune_ssd.py [case] > benchmarks/results/<gpu>/tuning/ssd.txt. `plan.py` is written from its table.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.core.arch import Arch
from retrograd.ops.rooms import room
from retrograd.ops.ssd import plan
from retrograd.ops.ssd.gluon import launches as hopper
from retrograd.ops.ssd.spec import Spec
from retrograd.testing.draw import draw, options
from retrograd.testing.interpreter import forget_plans

RUNS = 5
planned = plan.tile
VARIANTS: list[dict[str, int]] = [
    {"num_warps": warps, "pair_warps": warps, "stages": stages, "channels": channels, "carry_stages": carried}
    for (warps, stages, channels), carried in zip(
        product((4, 8), (1, 2, 3), (32, 64)), (1, 2, 3, 4, 2, 3, 2, 3, 2, 3, 2, 3), strict=True
    )
]


def kernel_times(call: Any) -> dict[str, float]:
    """Microseconds by kernel, the mean of a few runs with a flushed L2."""
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(RUNS):
            flush.zero_()
            call()
    times: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        times[event.key] += event.device_time_total / RUNS
    return times


def main() -> None:
    op = room("ssd")
    case = op.case(sys.argv[1] if len(sys.argv) > 1 else "B8_T4096_H24_P64_N128_G1")
    inputs = {name: tensor.requires_grad_() for name, tensor in draw(case, "cuda", 0).items()}
    dy = torch.randn_like(inputs["x"])

    def both() -> None:
        y = op.torch(**inputs, **options(case))
        torch.autograd.grad(y, list(inputs.values()), dy)

    kernels = ("prepare", "carry_states", "outputs", "pairs", "through_states", "finish", "sum_blocks", "sum_rows")
    print(case.name, "us:", *kernels)
    for variant in VARIANTS:

        def tile(spec: Spec, arch: Arch, variant: dict[str, int] = variant) -> plan.Tile:
            return replace(planned(spec, arch), **variant)

        forget_plans()
        with (
            mock.patch.object(plan, "tile", tile),
            mock.patch.object(hopper, "takes_forward", return_value=False),
            mock.patch.object(hopper, "takes_backward", return_value=False),
        ):
            try:
                times = kernel_times(both)
                print(variant, *(f"{times[name]:.0f}" for name in kernels), flush=True)
            except Exception as error:
                print(variant, "does not run:", str(error).splitlines()[0][:90], flush=True)
    print("planned:", asdict(planned(op_spec(op, case), arch_of_gpu())))


def op_spec(op: Any, case: Any) -> Spec:
    from retrograd.core.room import spec_of
    from retrograd.ops.ssd.op import OP

    spec: Spec = spec_of(OP, case)
    return spec


def arch_of_gpu() -> Arch:
    from retrograd.core.torch.launch import arch_of

    arch = arch_of(torch.device("cuda", 0))
    assert arch is not None
    return arch


if __name__ == "__main__":
    main()
