"""Peers of ssd in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from retrograd.core.cases import Case

from . import Function, Native, Peer, check_takes, load

ARGUMENTS = frozenset({"x", "dt", "A", "B", "C", "D", "dt_bias"})
OPTIONS = frozenset({"dt_softplus"})
CHUNK = 256  # steps of a chunk in mamba_ssm, as its own layer asks for them


def mamba_ssm(case: Case, reproducible: bool = False) -> Function:
    """mamba_ssm's Triton kernels, which need nothing built.

    By default they add some gradients up by atomics. Their reproducible mode is read from the environment in both
    passes. Set after the import, it keeps the tiles that are timed at the first call; set before, each kernel would
    take one fixed configuration instead, and run slower.
    """
    check_takes(case, ARGUMENTS | {"z"}, OPTIONS)
    if reproducible:
        load("mamba_ssm.utils.determinism", "use_deterministic_mode")  # older versions have no such mode
    scan = load("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")
    given_softplus = bool(case.options.get("dt_softplus"))

    def call(given: Mapping[str, Tensor]) -> Tensor:
        switch(reproducible)
        made: Tensor = scan(
            *(given[name] for name in ("x", "dt", "A", "B", "C")),
            CHUNK,
            D=given.get("D"),
            z=given.get("z"),
            dt_bias=given.get("dt_bias"),
            dt_softplus=given_softplus,
        )
        return SameMode.apply(made, reproducible)

    return call


def switch(reproducible: bool) -> None:
    """Set mamba_ssm's mode."""
    os.environ["MAMBA_DETERMINISTIC"] = "1" if reproducible else "0"


class SameMode(torch.autograd.Function):
    """The identity, whose backward pass sets the mode for the one that follows it; it launches nothing."""

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
    """flash-linear-attention's simple GLA: the recurrence alone, on inputs of its own that are made beforehand.

    It knows neither dt_bias nor softplus nor D, and has a B and a C for each head. It takes delta x, delta A and copies
    of B and C for all heads, and D x is added to its y after it: none of this is part of its time, in neither pass.
    """
    check_takes(case, ARGUMENTS, OPTIONS)
    attention = load("fla.ops.simple_gla", "chunk_simple_gla")
    given_softplus = bool(case.options.get("dt_softplus"))

    def prepare(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        x, delta = inputs["x"], inputs["dt"].float()
        if "dt_bias" in inputs:
            delta = delta + inputs["dt_bias"]
        if given_softplus:
            delta = softplus(delta)
        q, k = (inputs[name].repeat_interleave(x.shape[2] // inputs[name].shape[2], 2) for name in "CB")
        made = {"q": q, "k": k, "v": (delta[..., None] * x).to(x.dtype), "g": delta * inputs["A"]}
        if "D" in inputs:
            D = inputs["D"]
            made["skip"] = ((D if D.dim() == 2 else D[:, None]) * x).to(x.dtype)
        return made

    def call(given: Mapping[str, Tensor]) -> list[Tensor]:
        y: Tensor = attention(*(given[name] for name in "qkvg"), scale=1.0)[0]
        return [y, *(given[name] for name in given if name == "skip")]

    return Native(call, prepare, added_up)


def added_up(made: Sequence[Tensor]) -> list[Tensor]:
    """Y with the skip, where there is one."""
    return [made[0] + made[1]] if len(made) == 2 else list(made)


PEERS = (
    Peer("mamba_ssm", mamba_ssm, "mamba_ssm"),
    Peer("mamba_ssm-det", partial(mamba_ssm, reproducible=True), "mamba_ssm"),
    Peer("fla", fla, "fla-core"),
)
