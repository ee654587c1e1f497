"""Peers of linear_scan in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case

from . import Function, Native, NotApplicableError, Peer, check_takes, compile_for_one_shape, load

# torch's scan takes ten seconds to compile for each length; these lengths suffice for a curve.
COMPILED_LENGTHS = (64, 512, 4096)


def fla(case: Case) -> Native:
    """flash-linear-attention's HGRN, in chunks. It takes the logarithm of a, which is computed before timing."""
    check_takes(case, frozenset({"a", "b"}))
    check_real(case)
    scan = load("fla.ops.hgrn", "chunk_hgrn")
    return Native(
        lambda inputs: scan(inputs["b"], inputs["a"])[0],
        lambda inputs: {"a": inputs["a"].log(), "b": inputs["b"]},
    )


def torch_associative_scan(case: Case) -> Function:
    """PyTorch's associative scan of pairs, compiled for this shape only.

    The mode `pointwise`, one Triton kernel, computes T by T matrices in the backward pass, so it is used only without
    gradients; with gradients the mode `generic`, a tree of elementwise operations, is used.
    """
    check_takes(case, frozenset({"a", "b"}))
    check_real(case)
    T = case.inputs["b"].shape[1]
    if "bench" in case.tags and T not in COMPILED_LENGTHS:
        raise NotApplicableError(f"it is compiled for some lengths alone: {', '.join(map(str, COMPILED_LENGTHS))}")
    scan = load("torch._higher_order_ops.associative_scan", "associative_scan")

    def compiled(mode: str) -> Callable[..., Any]:
        def formula(a: Tensor, b: Tensor) -> Any:
            return scan(combine, (a, b), dim=1, combine_mode=mode)[1]

        return compile_for_one_shape(formula)

    fast, differentiable = compiled("pointwise"), compiled("generic")

    def call(inputs: Mapping[str, Tensor]) -> Any:
        a, b = inputs["a"], inputs["b"]
        return (fast if a.is_cuda and not torch.is_grad_enabled() else differentiable)(a, b)

    return call


def combine(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Combine two adjacent segments of the recurrence."""
    return before[0] * after[0], after[0] * before[1] + after[1]


def check_real(case: Case) -> None:
    """Raise NotApplicableError for complex numbers."""
    if any(tensor.dtype.startswith("complex") for tensor in case.inputs.values()):
        raise NotApplicableError("it takes real numbers alone")


PEERS = (
    Peer("fla", fla, "fla-core"),
    Peer("torch.associative_scan", torch_associative_scan, "torch"),
)
