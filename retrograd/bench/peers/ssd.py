"""Peers of ssd in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from retrograd.opinfo.cases import Case

from . import Function, Native, Peer, check_takes, load

ARGUMENTS = frozenset({"x", "dt", "A", "B", "C", "D", "dt_bias"})
OPTIONS = frozenset({"dt_softplus"})
CHUNK = 256  # steps of a chunk, as in mamba_ssm's own layer


def mamba_ssm(case: Case, reproducible: bool = False) -> Function:
    """mamba_ssm's Triton kernels, which need no compiled extension.

    By default they sum some gradients by atomics. Both passes read the environment variable of their reproducible mode.
    If it is set after the import, the kernels still autotune their tiles at the first call; if it is set before, each
    kernel uses one fixed configuration and runs slower.
    """
    check_takes(case, ARGUMENTS | {"z"}, OPTIONS)
    if reproducible:
        load("mamba_ssm.utils.determinism", "use_deterministic_mode")  # older versions have no such mode
    scan = load("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")
    use_softplus = bool(case.options.get("dt_softplus"))

    def call(inputs: Mapping[str, Tensor]) -> Tensor:
        switch(reproducible)
        y: Tensor = scan(
            *(inputs[name] for name in ("x", "dt", "A", "B", "C")),
            CHUNK,
            D=inputs.get("D"),
            z=inputs.get("z"),
            dt_bias=inputs.get("dt_bias"),
            dt_softplus=use_softplus,
        )
        return SameMode.apply(y, reproducible)

    return call


def switch(reproducible: bool) -> None:
    """Set or unset mamba_ssm's reproducible mode."""
    os.environ["MAMBA_DETERMINISTIC"] = "1" if reproducible else "0"


class SameMode(torch.autograd.Function):
    """The identity; its backward pass sets the mode for the backward pass of the scan. It launches no kernel."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, reproducible: bool) -> Tensor:
        """Y itself."""
        ctx.reproducible = reproducible
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradient itself."""
        switch(ctx.reproducible)
        return gradients[0], None


def fla(case: Case) -> Native:
    """flash-linear-attention's simple GLA: only the recurrence, on inputs computed before timing.

    It has no dt_bias, softplus or D, and needs a B and a C for each head. It takes delta x, delta A and copies of B and
    C for all heads, and D x is added to its y afterwards; its time includes none of this in either pass.
    """
    check_takes(case, ARGUMENTS, OPTIONS)
    attention = load("fla.ops.simple_gla", "chunk_simple_gla")
    use_softplus = bool(case.options.get("dt_softplus"))

    def prepare(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        x, delta = inputs["x"], inputs["dt"].float()
        if "dt_bias" in inputs:
            delta = delta + inputs["dt_bias"]
        if use_softplus:
            delta = softplus(delta)
        q, k = (inputs[name].repeat_interleave(x.shape[2] // inputs[name].shape[2], 2) for name in "CB")
        arrays = {"q": q, "k": k, "v": (delta[..., None] * x).to(x.dtype), "g": delta * inputs["A"]}
        if "D" in inputs:
            D = inputs["D"]
            arrays["skip"] = ((D if D.dim() == 2 else D[:, None]) * x).to(x.dtype)
        return arrays

    def call(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        y: Tensor = attention(*(inputs[name] for name in "qkvg"), scale=1.0)[0]
        return [y, *(inputs[name] for name in inputs if name == "skip")]

    return Native(call, prepare, added_up)


def added_up(results: Sequence[Tensor]) -> list[Tensor]:
    """Y plus the skip, if there is one."""
    return [results[0] + results[1]] if len(results) == 2 else list(results)


PEERS = (
    Peer("mamba_ssm", mamba_ssm, "mamba_ssm"),
    Peer("mamba_ssm-det", partial(mamba_ssm, reproducible=True), "mamba_ssm"),
    Peer("fla", fla, "fla-core"),
)
