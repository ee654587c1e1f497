"""A whole Mamba-2 mixer without its projections, with our ops and with mamba_ssm's fused function, on this GPU.

    python3 benchmarks/ssd_layer.py [RESULTS]

From z, x, B, C and dt in one array, the result of a layer's input projection, to the argument of its output
projection. Ours is `causal_conv1d` with silu, `ssd`, and `rms_norm` with z as its gate; theirs is
`mamba_split_conv1d_scan_combined`, which needs the CUDA package causal-conv1d too. B8 T4096 H80 P64 N128 G1,
activations in bf16, parameters in fp32. The inputs are the same. The output and every gradient are compared first:
their relative difference in the Euclidean norm may be up to AGREED, which is a few roundings to bf16. Then both passes
are timed as `benchmarks/gpu.py` does it.

A table is printed, and the rows are added to RESULTS/ssd_layer.jsonl, by default in benchmarks/results/<gpu>. The limit
of a row counts only the bytes of the inputs, the result and the gradients, and the FLOPs of ssd.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import retrograd
from retrograd.bench.environment import folder_name
from retrograd.bench.peers import Function, NotApplicableError, Peer, load
from retrograd.bench.peers.ssd import CHUNK
from retrograd.bench.results import LIMITS, Row, append
from retrograd.bench.run import difference, own_function, results, run, wanted
from retrograd.core.dtypes import BYTES
from retrograd.opinfo.cases import Case
from retrograd.opinfo.cases import Tensor as Drawn
from retrograd.opinfo.info import OpInfo, Pass
from retrograd.ops.infos import info
from retrograd.ops.ssd.cases import bench
from retrograd.testing.draw import draw, leaves, normal_as

BATCH, TIME, HEADS, P, N, G, WIDTH = 8, 4096, 80, 64, 128, 1, 4
INNER, STATES = HEADS * P, G * N
EPS = 1e-5
AGREED = 2**-6


def layer(
    zxbcdt: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A: Tensor, D: Tensor, norm_weight: Tensor
) -> Tensor:
    """Ours: three ops."""
    z, xBC, dt = zxbcdt.split([INNER, INNER + 2 * STATES, HEADS], -1)
    xBC = retrograd.causal_conv1d(xBC, conv_weight, conv_bias, activation="silu")
    x, B, C = xBC.split([INNER, STATES, STATES], -1)
    y = retrograd.ssd(
        x.unflatten(-1, (HEADS, P)),
        dt,
        A,
        B.unflatten(-1, (G, N)),
        C.unflatten(-1, (G, N)),
        D=D,
        dt_bias=dt_bias,
        dt_softplus=True,
    )
    return retrograd.rms_norm(y.flatten(2), norm_weight, gate=z, group_size=INNER // G, eps=EPS)


def mamba_ssm(case: Case) -> Function:
    """mamba_ssm's fused function, in its default mode."""
    load("causal_conv1d", "causal_conv1d_fn")  # without it their function can be imported but fails
    fused = load("mamba_ssm.ops.triton.ssd_combined", "mamba_split_conv1d_scan_combined")

    def call(tensors: Mapping[str, Tensor]) -> Any:
        names = ("zxbcdt", "conv_weight", "conv_bias", "dt_bias", "A", "D")
        return fused(
            *(tensors[name] for name in names),
            CHUNK,
            activation="silu",
            rmsnorm_weight=tensors["norm_weight"],
            rmsnorm_eps=EPS,
            headdim=P,
            ngroups=G,
            norm_before_gate=False,
        )

    return call


def layer_info() -> OpInfo:
    """The layer as an `OpInfo`, so that the benchmarks treat it as an op."""
    of_ssd = bench(BATCH, TIME, HEADS, P, N, G)
    channels = INNER + 2 * STATES
    inputs = {
        "zxbcdt": Drawn((BATCH, TIME, INNER + channels + HEADS), "bfloat16"),
        "conv_weight": Drawn((channels, WIDTH), "float32", std=WIDTH**-0.5),
        "conv_bias": Drawn((channels,), "float32", std=0.1),
        "dt_bias": of_ssd.inputs["dt_bias"],
        "A": of_ssd.inputs["A"],
        "D": of_ssd.inputs["D"],
        "norm_weight": Drawn((INNER,), "float32", mean=1.0, std=0.1),
    }
    case = Case(of_ssd.name, inputs, {}, frozenset({"bench"}), of_ssd.shape)

    def bytes_moved(case: Case, which: Pass) -> int:
        input_bytes = sum(prod(drawn.shape) * BYTES[drawn.dtype] for drawn in inputs.values())
        output_bytes = BATCH * TIME * INNER * BYTES["bfloat16"]
        return input_bytes + output_bytes if which == "fwd" else 2 * input_bytes + output_bytes

    def nothing(*arguments: Any) -> Any:
        raise NotImplementedError

    return OpInfo(
        name="ssd_layer",
        arguments=tuple(inputs),
        batch_axis={},
        cases=[case],
        torch=layer,
        jax=nothing,
        reference=layer,
        programs=nothing,
        bytes_moved=bytes_moved,
        flops=lambda case, which: info("ssd").flops(of_ssd, which),
    )


def distances(ours: Function, theirs: Function, case: Case, device: str) -> dict[str, float]:
    """Relative differences between their output and gradients and ours, by name."""
    inputs = leaves(draw(case, device, 0))
    found = []
    for function in (ours, theirs):
        (y,) = results(function, inputs)
        dy = normal_as(y.shape, y.dtype, torch.Generator(device).manual_seed(1))
        found.append([y.detach(), *torch.autograd.grad(y, wanted(inputs), dy)])
    names = ("y", *(f"d {name}" for name in inputs))
    return {name: difference(b, a) for name, a, b in zip(names, *found, strict=True)}


def main() -> int:
    op = layer_info()
    (case,) = op.cases
    default = Path(__file__).parent / "results" / folder_name(torch.cuda.get_device_name())
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    peers = [Peer("mamba_ssm", mamba_ssm, "mamba_ssm")]
    try:
        apart = distances(own_function(op, case), mamba_ssm(case), case, "cuda")
    except NotApplicableError as reason:
        print(f"mamba_ssm is left out: {reason}", flush=True)
        peers = []
    else:
        print("relative distances: " + ", ".join(f"{name} {far:.1e}" for name, far in apart.items()), flush=True)
        if not max(apart.values()) <= AGREED:
            print(f"they do not agree within {AGREED:.1e}", flush=True)
            return 1
    times: dict[str, dict[str, float]] = {}

    def emit(row: Row) -> None:
        append(folder / "ssd_layer.jsonl", row)
        if row.op != LIMITS and row.device_ms is not None:
            times.setdefault(row.impl, {})[row.pass_] = row.device_ms

    failed = run(op, [case], peers, emit, partial(print, flush=True))
    for impl, found in times.items():
        both = " + ".join(f"{which} {ms:.3f}" for which, ms in found.items())
        print(f"{impl:12} {both} = {sum(found.values()):.3f} ms", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
