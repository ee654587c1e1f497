"""The kernels of examples/naive_rms_norm.py and examples/naive_linear_scan.py, and ours, timed on this GPU.

    python3 benchmarks/naive.py [RESULTS]

Every kernel's results are compared with ours first, and its gradients with themselves in a second run. Rows are added
to RESULTS/naive.jsonl, by default in benchmarks/results/<gpu>.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import naive_linear_scan
import naive_rms_norm
import torch
from own_process import add
from torch import Tensor

import retrograd
from retrograd.bench.environment import folder_name, versions
from retrograd.bench.limits import COPY_BYTES, copy_ms
from retrograd.bench.measure import GPU_CLOCK, device_ms, input_sets
from retrograd.bench.results import rounded

RESULTS = Path(__file__).resolve().parent / "results"
NORMS = ((32768, 4096), (65536, 1024))
SCANS = ((8, 4096, 2048), (1, 65536, 1536))
APART = 1e-2  # bf16 results that differ in their last bit
OURS = "retrograd"


class Timed(NamedTuple):
    """A pass of one implementation on one shape: a call for each set of inputs, that returns a tensor or several."""

    op: str
    shape: dict[str, int]
    dtype: str
    which: str
    impl: str
    calls: Sequence[Callable[[], Any]]
    bytes_moved: int


def norms(M: int, N: int) -> Iterator[Timed]:
    """RMSNorm of bf16 rows with a float32 weight."""
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    w = torch.randn(N, device="cuda")
    sets = [(torch.randn(M, N, **like), torch.randn(M, N, **like)) for _ in range(input_sets(6 * M * N))]
    rstd = [naive_rms_norm.forward_by_row(x, w)[1] for x, _ in sets]

    def timed(which: str, impl: str, calls: Sequence[Callable[[], Any]]) -> Timed:
        return Timed("rms_norm", {"M": M, "N": N}, "bfloat16", which, impl, calls, M * N * (4 if which == "fwd" else 6))

    leaves = [(x.detach().requires_grad_(), w.detach().requires_grad_()) for x, _ in sets]
    eps = naive_rms_norm.EPS
    yield timed("fwd", OURS, [lambda x=x: retrograd.rms_norm(x, w, eps=eps) for x, _ in sets])
    for name, step in naive_rms_norm.STEPS.items():
        yield timed("fwd", name, [lambda x=x, step=step: step.forward(x, w)[0] for x, _ in sets])
    stream = torch.cuda.Stream()  # of both passes: a backward pass runs on the stream of its forward pass
    with torch.cuda.stream(stream):
        results = [retrograd.rms_norm(*leaf, eps=eps) for leaf in leaves]
        gradients = torch.autograd.grad
        ours = [
            lambda y=y, leaf=leaf, dy=dy: gradients(y, leaf, dy, retain_graph=True)
            for y, leaf, (_, dy) in zip(results, leaves, sets, strict=True)
        ]
        yield timed("bwd", OURS, ours)
        for name, step in naive_rms_norm.STEPS.items():
            calls = [
                lambda x=x, dy=dy, r=r, step=step: step.backward(dy, x, w, r)
                for (x, dy), r in zip(sets, rstd, strict=True)
            ]
            yield timed("bwd", name, calls)


def scans(B: int, T: int, D: int) -> Iterator[Timed]:
    """The linear scan in float32."""
    shape = (B, T, D)
    sets = [
        (torch.rand(shape, device="cuda"), torch.randn(shape, device="cuda")) for _ in range(input_sets(12 * B * T * D))
    ]
    for name, step in {OURS: retrograd.linear_scan, **naive_linear_scan.STEPS}.items():
        calls = [lambda a=a, b=b, step=step: step(a, b) for a, b in sets]
        yield Timed("linear_scan", dict(zip("BTD", shape, strict=True)), "float32", "fwd", name, calls, 12 * B * T * D)


def results(call: Callable[[], Any]) -> tuple[Tensor, ...]:
    """Of a call, in a tuple."""
    found = call()
    return found if isinstance(found, tuple) else (found,)


def main() -> int:
    gpu = torch.cuda.get_device_name()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / folder_name(gpu)
    rate = 2 * COPY_BYTES / copy_ms(GPU_CLOCK, torch.device("cuda"))  # bytes a millisecond, read and written
    wrong = 0
    for group in (*(norms(*shape) for shape in NORMS), *(scans(*shape) for shape in SCANS)):
        expected: dict[str, tuple[Tensor, ...]] = {}
        for timed in group:
            found, again = results(timed.calls[0]), results(timed.calls[0])
            reference = expected.setdefault(timed.which, found)  # ours is the first
            apart = max(float((a - b).norm() / b.norm()) for a, b in zip(found, reference, strict=True))
            wrong += apart > APART
            same = all(map(torch.equal, found, again))
            case = "_".join(f"{letter}{size}" for letter, size in timed.shape.items())
            row = {
                "op": timed.op,
                "case": case,
                "shape": timed.shape,
                "dtype": timed.dtype,
                "pass": timed.which,
                "impl": timed.impl,
                "device_ms": rounded(device_ms(timed.calls)),
                "limit_ms": rounded(timed.bytes_moved / rate),
                "same_bits": same,
                "gpu": gpu,
                "versions": versions(("torch", "triton")),
            }
            add(row, folder / "naive.jsonl", gpu)
            line = f"{row['device_ms']:9.4f} ms, limit {row['limit_ms']:.4f}, apart {apart:.1e}, same bits: {same}"
            print(f"{timed.op:12} {case:18} {timed.which} {timed.impl:28} {line}", flush=True)
        del expected, found, again, reference
        torch.cuda.empty_cache()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
