"""The first forward and backward call of every op with an empty compile cache, in PyTorch on a GPU.

    python benchmarks/first_step.py --results benchmarks/results/h200 [--ops rms_norm,ssd] [--peers mamba_ssm]

What users wait for in a new environment. Each row is a process of its own, on one benchmark case of the op; the
clock starts after CUDA has, and after PyTorch's own first backward pass with a given gradient, which imports sympy for
two seconds. Peers are those of `retrograd bench` that have this name, found on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from own_process import add, measured  # noqa: E402

ROWS = "first_step.jsonl"
CASES = {
    "rms_norm": "M32768_N4096",
    "linear_scan": "B8_T4096_D2048",
    "causal_conv1d": "B8_T4096_D4096",
    "selective_scan": "B8_D2048_T2048_N16",
    "ssd": "B8_T4096_H80_P64_N128_G1",
    "attention": "B4_T4096_H24_D128",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("."), help=f"folder of {ROWS}")
    parser.add_argument("--ops", default=",".join(CASES))
    parser.add_argument("--peers", default="", help="comma-separated")
    parser.add_argument("--one", nargs=2, metavar=("OP", "IMPL"), help="measure one row in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return 0
    from retrograd.bench.peers import peers

    failed = 0
    for op in options.ops.split(","):
        own = {peer.name for peer in peers(op, "torch")}
        for impl in ("retrograd", *(name for name in options.peers.split(",") if name in own)):
            with tempfile.TemporaryDirectory() as cache:
                row = measured([__file__, "--one", op, impl], f"{op} {impl}", {"TRITON_CACHE_DIR": cache})
            if row is None:
                failed += 1
                continue
            add(row, options.results / ROWS, row["gpu"])
            print(f"{op:16} {impl:12} {row['fwd_s']:6.2f} + {row['bwd_s']:6.2f} s on {row['cores']} cores", flush=True)
    return failed


def measure(op: str, impl: str) -> dict[str, Any]:
    """The row of one op and implementation."""
    import torch

    from retrograd.bench.environment import versions
    from retrograd.bench.peers import native, peers
    from retrograd.bench.run import gradients_like, own_function, own_inputs, results, wanted
    from retrograd.bench.selection import bench_cases
    from retrograd.ops.infos import info
    from retrograd.testing.draw import draw, leaves

    case = bench_cases(info(op), [CASES[op]])[0]
    inputs = leaves(draw(case, "cuda", 0))
    if impl == "retrograd":
        built = native(own_function(info(op), case))
    else:
        (peer,) = (peer for peer in peers(op, "torch") if peer.name == impl)
        built = native(peer.build(case))
    inputs = own_inputs(built, inputs)
    x = torch.ones(1, device="cuda", requires_grad=True)
    torch.autograd.grad(x.exp(), x, torch.ones_like(x))
    torch.cuda.synchronize()
    began = time.perf_counter()
    outputs = results(built.call, inputs)
    torch.cuda.synchronize()
    middle = time.perf_counter()
    torch.autograd.grad(outputs, wanted(inputs), gradients_like(outputs, 0))
    torch.cuda.synchronize()
    end = time.perf_counter()
    return {
        "op": op,
        "case": case.name,
        "impl": impl,
        "fwd_s": round(middle - began, 2),
        "bwd_s": round(end - middle, 2),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name(),
        "versions": versions(("torch", "triton", *(() if impl == "retrograd" else (impl,)))),
    }


if __name__ == "__main__":
    sys.exit(main())
