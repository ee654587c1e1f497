"""Peers of selective_scan in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from retrograd.core.cases import Case

from . import Native, Peer, check_takes, load

ARGUMENTS = frozenset({"x", "dt", "A", "B", "C", "D", "z", "dt_bias"})
OPTIONS = frozenset({"dt_softplus"})


def mamba_ssm(case: Case) -> Native:
    """mamba_ssm's CUDA kernels. They take dense (B, D, T) and (B, G, N, T) tensors, which are made beforehand."""
    check_takes(case, ARGUMENTS, OPTIONS)
    load("selective_scan_cuda", "fwd")  # the package itself can be imported without it
    scan = load("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")
    softplus = bool(case.options.get("dt_softplus"))

    def call(given: Mapping[str, Tensor]) -> Tensor:
        made: Tensor = scan(
            *(given[name] for name in ("x", "dt", "A", "B", "C")),
            D=given.get("D"),
            z=given.get("z"),
            delta_bias=given.get("dt_bias"),
            delta_softplus=softplus,
        )
        return made

    return Native(call, rows_of_time, back)


def rows_of_time(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with time last."""
    made = dict(inputs)
    for name in ("x", "dt", "z"):
        if name in made:
            made[name] = made[name].transpose(1, 2).contiguous()
    for name in "BC":
        if made[name].dim() == 3:
            made[name] = made[name].unsqueeze(2)
        if made[name].dim() == 4:
            made[name] = made[name].permute(0, 2, 3, 1).contiguous()
    return made


def back(made: Sequence[Tensor]) -> list[Tensor]:
    """(B, D, T) results as (B, T, D)."""
    return [y.transpose(1, 2) for y in made]


PEERS = (Peer("mamba_ssm", mamba_ssm, "mamba_ssm"),)
