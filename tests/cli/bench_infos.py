"""Fake ops of plain formulas with the arguments and benchmark shapes of the recurrences; ssd keeps its own.

The tests compare the peers with these on a CPU and draw plots of their cases.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu, softplus

from retrograd.opinfo import cases
from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo, Pass
from retrograd.ops.infos import info

TEST, BENCH = frozenset({"test"}), frozenset({"bench"})


def linear_scan(a: Tensor, b: Tensor, *, initial_state: Tensor | None = None, reverse: bool = False) -> Tensor:
    h = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for t in range(b.shape[1])[:: -1 if reverse else 1]:
        h = a[:, t] * h + b[:, t]
        states.append(h)
    return torch.stack(states[:: -1 if reverse else 1], 1)


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None) -> Tensor:
    D, W = weight.shape
    y = conv1d(x.float().transpose(1, 2), weight.float()[:, None], bias, padding=W - 1, groups=D)[..., : x.shape[1]]
    y = y.transpose(1, 2)
    return (silu(y) if activation else y).to(x.dtype)


def selective_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, dt_bias: Tensor, dt_softplus: bool
) -> Tensor:
    delta = dt.float() + dt_bias
    delta = softplus(delta) if dt_softplus else delta
    h = torch.zeros(x.shape[0], *A.shape)
    y = []
    for t in range(x.shape[1]):
        step = delta[:, t, :, None]
        h = torch.exp(step * A) * h + step * x[:, t, :, None].float() * B[:, t, None].float()
        y.append((h * C[:, t, None].float()).sum(-1))
    return ((torch.stack(y, 1) + D * x.float()) * silu(z.float())).to(x.dtype)


def scan_case(B: int, T: int, D: int, tags: frozenset[str] = BENCH, **options: Any) -> Case:
    inputs = {"a": cases.Tensor((B, T, D), "float32", mean=2.0, law="decay"), "b": cases.Tensor((B, T, D), "float32")}
    if options.pop("initial_state", False):
        inputs["initial_state"] = cases.Tensor((B, D), "float32")
    return Case(f"B{B}_T{T}_D{D}", inputs, options, tags, {"B": B, "T": T, "D": D})


def conv_case(B: int, T: int, D: int, tags: frozenset[str] = BENCH, dtype: str = "bfloat16", W: int = 4) -> Case:
    inputs = {"x": cases.Tensor((B, T, D), dtype), "weight": cases.Tensor((D, W), "float32")}
    inputs["bias"] = cases.Tensor((D,), "float32")
    return Case(f"B{B}_T{T}_D{D}_W{W}", inputs, {"activation": "silu"}, tags, {"B": B, "T": T, "D": D, "W": W})


def selective_case(
    B: int, T: int, D: int, N: int, dtype: str = "bfloat16", tags: frozenset[str] = BENCH, kind: str = ""
) -> Case:
    wide = cases.Tensor((B, T, D), dtype)
    inputs = {
        "x": wide,
        "dt": wide,
        "A": cases.Tensor((D, N), "float32", std=0.5, law="negative"),
        "B": cases.Tensor((B, T, N), dtype),
        "C": cases.Tensor((B, T, N), dtype),
        "D": cases.Tensor((D,), "float32"),
        "z": wide,
        "dt_bias": cases.Tensor((D,), "float32", mean=-3.0),
    }
    return Case(f"{kind}B{B}_D{D}_T{T}_N{N}", inputs, {"dt_softplus": True}, tags, {"B": B, "T": T, "D": D, "N": N})


SCAN = [
    *(scan_case(8, 2**k, 2048) for k in range(5, 17)),
    scan_case(1, 65536, 1536),
    scan_case(1, 2**20, 64),
]
CONV = [conv_case(8, 4096, 4096), conv_case(8, 2048, 4096, W=2), conv_case(1, 65536, 4096)]
SELECTIVE = [
    selective_case(8, 2048, 2048, 16),
    selective_case(8, 4096, 5120, 16),
    selective_case(1, 65536, 4096, 16),
    selective_case(1, 2048, 1536, 16),
    *(selective_case(8, 2048, 2048, N) for N in (8, 32, 64)),
    selective_case(8, 2048, 2048, 16, "float32", kind="fp32_"),
]


def bytes_of(tensor: cases.Tensor) -> int:
    size = 2 if tensor.dtype == "bfloat16" else 4
    for dim in tensor.shape:
        size *= dim
    return size


def made_up(name: str, function: Callable[..., Any], found: list[Case]) -> OpInfo:
    def bytes_moved(case: Case, which: Pass) -> int:
        inputs = sum(bytes_of(tensor) for tensor in case.inputs.values())
        result = bytes_of(next(iter(case.inputs.values())))
        return inputs + result if which == "fwd" else 2 * inputs + result

    def exps(case: Case, which: Pass) -> int:
        letters = case.shape
        return letters["B"] * letters["T"] * letters["D"] * letters.get("N", 0)

    def nothing(*arguments: Any) -> Any:
        raise NotImplementedError

    return OpInfo(
        name=name,
        arguments=tuple(found[0].inputs),
        batch_axis={},
        cases=found,
        torch=function,
        jax=nothing,
        reference=function,
        programs=nothing,
        bytes_moved=bytes_moved,
        flops=lambda case, which: 0,
        exps=exps if name == "selective_scan" else None,
    )


INFOS = {
    "linear_scan": made_up("linear_scan", linear_scan, [*SCAN, scan_case(2, 7, 5, TEST)]),
    "causal_conv1d": made_up("causal_conv1d", causal_conv1d, [*CONV, conv_case(2, 9, 6, TEST)]),
    "selective_scan": made_up("selective_scan", selective_scan, [*SELECTIVE, selective_case(2, 6, 5, 3, tags=TEST)]),
    "ssd": info("ssd"),
}
