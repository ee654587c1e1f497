"""Peers of selective_scan in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from retrograd.opinfo.cases import Case

from . import Native, Peer, check_takes, load

ARGUMENTS = frozenset({"x", "dt", "A", "B", "C", "D", "z", "dt_bias"})
OPTIONS = frozenset({"dt_softplus"})


def mamba_ssm(case: Case) -> Native:
    """mamba_ssm's CUDA kernels, on dense (B, D, T) and (B, G, N, T) tensors; the conversion is not timed."""
    check_takes(case, ARGUMENTS, OPTIONS)
    load("selective_scan_cuda", "fwd")  # the package can be imported without its CUDA extension
    scan = load("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
    softplus = bool(case.options.get("dt_softplus"))

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        y: Tensor = scan(
            *(inputs[name] for name in ("x", "dt", "A", "B", "C")),
            D=inputs.get("D"),
            z=inputs.get("z"),
            delta_bias=inputs.get("dt_bias"),
            delta_softplus=softplus,
        )
        return y

    return Native(call, rows_of_time, back)


def rows_of_time(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with time as the last axis, dense."""
    arrays = dict(inputs)
    for name in ("x", "dt", "z"):
        if name in arrays:
            arrays[name] = arrays[name].transpose(1, 2).contiguous()
    for name in "BC":
        if arrays[name].dim() == 3:
            arrays[name] = arrays[name].unsqueeze(2)
        if arrays[name].dim() == 4:
            arrays[name] = arrays[name].permute(0, 2, 3, 1).contiguous()
    return arrays


def back(results: Sequence[Tensor]) -> list[Tensor]:
    """(B, D, T) results as (B, T, D)."""
    return [y.transpose(1, 2) for y in results]


PEERS = (Peer("mamba_ssm", mamba_ssm, "mamba_ssm"),)
