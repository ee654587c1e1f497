"""The backward pass of ssd from T = 32 to 8192, at B8 H24 P64 N128 in bf16, with D, dt_bias and softplus, on this GPU.

    python3 benchmarks/ssd_lengths.py [RESULTS]

Three implementations, each the whole backward pass as `benchmarks/gpu.py` times it, with all gradients: ours,
mamba_ssm's where it is installed, and `retrograd, flips`. The last is ours followed by flip, cumsum and flip of an
fp32 array with a number for every step and head, in chunks of 256 steps with time last: the three launches by which
mamba_ssm sums the decays from the right between its kernels. Our kernels compute such sums themselves; the difference
between the two rows is the time this saves. Nothing uses the extra sums.

A table is printed. Rows and their curve are written to RESULTS/ssd_lengths.jsonl and .png, by default in
benchmarks/results/<gpu>.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.nn.functional import pad

from retrograd.bench.drawing import draw_file
from retrograd.bench.environment import folder_name
from retrograd.bench.peers import Function, Peer
from retrograd.bench.results import LIMITS, Row, append, read
from retrograd.bench.run import own_function, run
from retrograd.bench.selection import chosen_peers
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.ops.infos import info
from retrograd.ops.ssd.cases import bench

LENGTHS = tuple(2**power for power in range(5, 14))
CHUNK = 256  # mamba_ssm's


class Flips(torch.autograd.Function):
    """The identity of dt. Its backward pass, which runs after that of ssd, sums an array from the right."""

    @staticmethod
    def forward(ctx: Any, dt: Tensor) -> Tensor:
        decays = dt.float().transpose(1, 2)
        steps = min(CHUNK, dt.shape[1])
        ctx.decays = pad(decays, (0, -dt.shape[1] % steps)).unflatten(2, (-1, steps)).contiguous()
        return dt.view_as(dt)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.decays.flip(-1).cumsum(-1).flip(-1)
        return gradients[0]


def with_flips(op: OpInfo, case: Case) -> Function:
    """Ours, and the flips after its backward pass."""
    own = own_function(op, case)

    def call(tensors: Mapping[str, Tensor]) -> Any:
        return own({**tensors, "dt": Flips.apply(tensors["dt"])})

    return call


def table(rows: list[Row]) -> list[str]:
    """Milliseconds by length and implementation."""
    impls = list(dict.fromkeys(row.impl for row in rows))
    found = {(row.shape["T"], row.impl): row.device_ms for row in rows}
    lines = [f"{'T':>6}" + "".join(f"{impl:>20}" for impl in impls)]
    for length in sorted({length for length, _ in found}):
        times = (found.get((length, impl)) for impl in impls)
        lines.append(f"{length:6}" + "".join(f"{'' if ms is None else f'{ms:.4f} ms':>20}" for ms in times))
    return lines


def main() -> int:
    op = info("ssd")
    cases = [bench(8, length, 24, 64, 128) for length in LENGTHS]
    peers = [Peer("retrograd, flips", partial(with_flips, op)), *chosen_peers("ssd", "torch", ["mamba_ssm"])]
    default = Path(__file__).parent / "results" / folder_name(torch.cuda.get_device_name())
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    path = folder / "ssd_lengths.jsonl"
    path.unlink(missing_ok=True)

    def emit(row: Row) -> None:
        if row.op == LIMITS or (row.pass_ == "bwd" and row.device_ms is not None):
            append(path, row)

    failed = run(op, cases, peers, emit, partial(print, flush=True))
    print("\n".join(table([row for row in read(path) if row.op != LIMITS])), flush=True)
    draw_file(path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
