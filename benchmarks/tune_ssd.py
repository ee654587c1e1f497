"""Times the tiles of ssd's Triton kernels (not those for Hopper) on a GPU: microseconds a kernel, by a profiler.

python benchmarks/tune_ssd.py [case] > benchmarks/results/<gpu>/tuning/ssd.txt. The op's `triton/plan.py` is written
from its table.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from retrograd.bench.kernels import kernel_times
from retrograd.core.torch.launch import arch_of
from retrograd.opinfo.info import spec_of
from retrograd.ops.infos import info
from retrograd.ops.ssd.op import OP
from retrograd.ops.ssd.triton.plan import planned
from retrograd.testing.draw import draw, options

VARIANTS: list[dict[str, int]] = [
    {"num_warps": warps, "pair_warps": warps, "stages": stages, "channels": channels, "carry_stages": carried}
    for (warps, stages, channels), carried in zip(
        product((4, 8), (1, 2, 3), (32, 64)), (1, 2, 3, 4, 2, 3, 2, 3, 2, 3, 2, 3), strict=True
    )
]


def main() -> None:
    op = info("ssd")
    case = op.case(sys.argv[1] if len(sys.argv) > 1 else "B8_T4096_H24_P64_N128_G1")
    inputs = {name: tensor.requires_grad_() for name, tensor in draw(case, "cuda", 0).items()}
    dy = torch.randn_like(inputs["x"])

    def both(function: Any) -> None:
        y = function(**inputs, **options(case))
        torch.autograd.grad(y, list(inputs.values()), dy)

    kernels = ("prepare", "carry_states", "outputs", "pairs", "through_states", "finish", "sum_blocks", "sum_rows")
    print(case.name, "us:", *kernels)
    for variant in VARIANTS:
        tried = op.variant(only="triton", replan=partial(replace, **variant))
        try:
            times = kernel_times(partial(both, tried.torch))
            print(variant, *(f"{times[name]:.0f}" for name in kernels), flush=True)
        except Exception as error:
            print(variant, "does not run:", str(error).splitlines()[0][:90], flush=True)
    arch = arch_of(torch.device("cuda", 0))
    assert arch is not None
    print("planned:", asdict(planned(spec_of(OP, case), arch, "fwd")))


if __name__ == "__main__":
    main()
