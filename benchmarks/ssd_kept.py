"""What ssd saves for the backward pass in addition to its inputs and output: ours and mamba_ssm's.

    python3 benchmarks/ssd_kept.py [OUT.txt]

Ours saves the states that the spec describes, one every 128 or 256 steps. mamba_ssm saves the running sums of decays,
fp32, for every step and head, padded to chunks of 256 steps; its backward pass recomputes the states. With a gate it
would also save the result before it. Both are counted without a GPU. On a GPU the memory that autograd holds is
measured too, and so is the peak of memory during forward and backward, minus the memory before; it includes the results
and the gradients, for both alike. Then bytes against time, for the first case: ours as it is, ours with a state every
256 steps instead of 128 (the backward pass computes those between), and mamba_ssm, which saves none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from retrograd.bench.peers import Function, NotApplicableError
from retrograd.bench.peers.ssd import CHUNK, mamba_ssm
from retrograd.bench.results import Row
from retrograd.bench.run import own_function, results, run, wanted
from retrograd.bench.selection import chosen_peers
from retrograd.core.dtypes import BYTES
from retrograd.core.op import Op
from retrograd.core.spec import Param
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo, spec_of
from retrograd.ops.infos import info
from retrograd.ops.ssd.op import OP, Spec
from retrograd.testing.draw import Arrays, draw, leaves

MIB = 2**20


@dataclass(frozen=True)
class Sparse(Spec):
    """Calls that keep a state every 256 steps, whatever they have."""

    @property
    def chunk(self) -> int:
        return 256


def ours(case: Case, op: Op = OP) -> int:
    """Bytes that retrograd keeps."""
    kept: Param = spec_of(op, case)["states"]
    return kept.nbytes


def theirs(case: Case) -> int:
    """Bytes that mamba_ssm saves for a call without a gate."""
    steps = -(-case.shape["T"] // CHUNK) * CHUNK
    return case.shape["B"] * case.shape["H"] * steps * BYTES["float32"]


def measured(function: Function, inputs: Arrays) -> tuple[int, int]:
    """Bytes that autograd holds in addition to inputs and outputs, and the peak of bytes in use during both passes."""
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = results(function, inputs)
    for tensor in (*inputs.values(), *outputs):
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    torch.autograd.grad(outputs, wanted(inputs), [torch.ones_like(y) for y in outputs])
    return sum(saved.values()), torch.cuda.max_memory_allocated() - before


def on_gpu(name: str, build: Callable[[Case], Function], case: Case) -> str:
    """A case's measured figures."""
    try:
        function = build(case)
    except NotApplicableError as reason:
        return f"   {name}: {reason}"
    inputs = leaves(draw(case, "cuda", 0))
    measured(function, inputs)  # so that one-time allocations are not counted
    kept, most = measured(function, inputs)
    return f"   {name}: {kept / MIB:.1f} MiB kept, {most / MIB:.0f} MiB at most"


def table() -> Iterator[str]:
    """The lines of the table."""
    has_gpu = torch.cuda.is_available()
    yield f"benchmarks/ssd_kept.py: {torch.cuda.get_device_name() if has_gpu else 'counted, without a GPU'}"
    yield f"{'MiB':30}{'x':>9}{'retrograd':>11}{'mamba_ssm':>11}"
    op = info("ssd")
    for case in op.tagged("bench"):
        x = case.inputs["x"]
        sizes = (size / MIB for size in (prod(x.shape) * BYTES[x.dtype], ours(case), theirs(case)))
        line = "{:30}{:9.1f}{:11.1f}{:11.1f}".format(case.name, *sizes)
        if has_gpu:
            line += on_gpu("retrograd", partial(own_function, op), case) + on_gpu("mamba_ssm", mamba_ssm, case)
        yield line


def against_time(case: Case) -> Iterator[str]:
    """Saved bytes, and the time of both passes."""

    def line(name: str, size: int, impl: str, times: dict[str, list[float]]) -> str:
        passes = "".join(f"{ms:11.3f}" for ms in times.get(impl, []))
        return f"{name:30}{size / MIB:9.1f}{passes}"

    yield f"{case.name:30}{'MiB kept':>9}{'forward':>11}{'backward':>11} ms"
    dense = info("ssd")
    times = passes_ms(dense, case, ["mamba_ssm"])
    yield line(f"a state every {spec_of(OP, case).chunk} steps", ours(case), "retrograd", times)
    yield line("mamba_ssm", theirs(case), "mamba_ssm", times)
    sparse = dense.variant(call=Sparse)
    assert sparse.op is not None
    yield line("a state every 256 steps", ours(case, sparse.op), "retrograd", passes_ms(sparse, case, []))


def passes_ms(op: OpInfo, case: Case, peers: list[str]) -> dict[str, list[float]]:
    """Milliseconds of forward and backward by implementation: ours, and those of the peers that run."""
    rows: list[Row] = []
    run(op, [case], chosen_peers("ssd", "torch", peers), rows.append, partial(print, flush=True))
    times: dict[str, list[float]] = {}
    for row in rows:
        if row.op == op.name and row.device_ms is not None:
            times.setdefault(row.impl, []).append(row.device_ms)
    return times


def main() -> None:
    lines = []
    for line in chain(table(), against_time(info("ssd").tagged("bench")[0]) if torch.cuda.is_available() else ()):
        lines.append(line)
        print(line, flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
