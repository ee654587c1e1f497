"""Peers of rms_norm in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.functional import rms_norm, silu

from retrograd.core.cases import Case

from . import Function, NotApplicableError, Peer, check_takes, compile_for_one_shape, load

# What PyTorch's own formula below can say; the rest has no peer here.
OPTIONS = frozenset({"eps", "prenorm"})


def eps(case: Case) -> float:
    """The case's eps."""
    return float(case.options.get("eps", 1e-6))


def torch_formula(case: Case) -> Function:
    """PyTorch's own: its fused F.rms_norm, with the sum or the gate as an operation before it."""
    check_takes(case, frozenset({"x", "weight", "residual", "gate"}), OPTIONS)
    epsilon, prenorm = eps(case), bool(case.options.get("prenorm"))

    def formula(inputs: Mapping[str, Tensor]) -> Any:
        x, weight = inputs["x"], inputs.get("weight")
        s = x + inputs["residual"] if "residual" in inputs else x
        u = s * silu(inputs["gate"]) if "gate" in inputs else s
        # F.rms_norm is fused where weight and input have one dtype only.
        y = rms_norm(u, u.shape[-1:], None if weight is None else weight.to(u.dtype), epsilon)
        return (y, s) if prenorm else y

    return formula


def torch_compile(case: Case) -> Function:
    """The same under torch.compile, compiled for this one shape."""
    return compile_for_one_shape(torch_formula(case))


def liger(case: Case) -> Function:
    """Liger's Triton kernels; the sum has a kernel of its own."""
    epsilon = eps(case)
    if "residual" in case.inputs:
        check_takes(case, frozenset({"x", "weight", "residual"}), OPTIONS)
        if not case.options.get("prenorm"):
            raise NotApplicableError("it returns the sum always")
        add = load("liger_kernel.ops.fused_add_rms_norm", "LigerFusedAddRMSNormFunction").apply
        return lambda given: add(given["x"], given["residual"], given["weight"], epsilon, 0.0, "llama", False)
    check_takes(case, frozenset({"x", "weight"}), frozenset({"eps"}))
    norm = load("liger_kernel.ops.rms_norm", "LigerRMSNormFunction").apply
    return lambda given: norm(given["x"], given.get("weight"), epsilon, 0.0, "llama", False)


def quack(case: Case) -> Function:
    """Quack's CuTe DSL kernels."""
    check_takes(case, frozenset({"x", "weight", "bias", "residual"}), OPTIONS)
    epsilon, prenorm = eps(case), bool(case.options.get("prenorm"))
    norm = load("quack.rmsnorm", "rmsnorm")
    return lambda given: norm(
        given["x"],
        given.get("weight"),
        bias=given.get("bias"),
        residual=given.get("residual"),
        eps=epsilon,
        prenorm=prenorm,
    )


PEERS = (
    Peer("torch", torch_formula, "torch"),
    Peer("torch.compile", torch_compile, "torch", costly=True),
    Peer("liger", liger, "liger-kernel"),
    Peer("quack", quack, "quack-kernels"),
)
