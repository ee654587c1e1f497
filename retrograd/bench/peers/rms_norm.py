"""Peers of rms_norm in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.functional import rms_norm, silu

from retrograd.opinfo.cases import Case

from . import Function, NotApplicableError, Peer, check_takes, compile_for_one_shape, load

# Options that PyTorch's formula below supports; no peer supports the others.
OPTIONS = frozenset({"eps", "prenorm"})


def eps(case: Case) -> float:
    """The case's eps."""
    return float(case.options.get("eps", 1e-6))


def torch_formula(case: Case) -> Function:
    """PyTorch's fused F.rms_norm, after a separate operation for the sum or the gate."""
    check_takes(case, frozenset({"x", "weight", "residual", "gate"}), OPTIONS)
    epsilon, prenorm = eps(case), bool(case.options.get("prenorm"))

    def formula(inputs: Mapping[str, Tensor]) -> Any:
        x, weight = inputs["x"], inputs.get("weight")
        s = x + inputs["residual"] if "residual" in inputs else x
        u = s * silu(inputs["gate"]) if "gate" in inputs else s
        # F.rms_norm is fused only if weight and input have the same dtype.
        y = rms_norm(u, u.shape[-1:], None if weight is None else weight.to(u.dtype), epsilon)
        return (y, s) if prenorm else y

    return formula


def torch_compile(case: Case) -> Function:
    """The same under torch.compile, compiled for this shape only."""
    return compile_for_one_shape(torch_formula(case))


def liger(case: Case) -> Function:
    """Liger's Triton kernels; with a residual, its separate kernel for the sum and the norm."""
    if "residual" in case.inputs:
        epsilon = eps(case)
        check_takes(case, frozenset({"x", "weight", "residual"}), OPTIONS)
        if not case.options.get("prenorm"):
            raise NotApplicableError("it returns the sum always")
        add = load("liger_kernel.ops.fused_add_rms_norm", "LigerFusedAddRMSNormFunction").apply
        return lambda inputs: add(inputs["x"], inputs["residual"], inputs["weight"], epsilon, 0.0, "llama", False)
    return liger_norm(case, "liger_kernel.ops.rms_norm")


def liger_cute(case: Case) -> Function:
    """Liger's CuTe DSL kernels, of which one computes dx and the parts of dweight."""
    return liger_norm(case, "liger_kernel.ops.cutedsl.ops.rms_norm")


def liger_norm(case: Case, module: str) -> Function:
    """One of Liger's implementations of the norm alone."""
    check_takes(case, frozenset({"x", "weight"}), frozenset({"eps"}))
    epsilon = eps(case)
    norm = load(module, "LigerRMSNormFunction").apply
    return lambda inputs: norm(inputs["x"], inputs.get("weight"), epsilon, 0.0, "llama", False)


def quack(case: Case) -> Function:
    """Quack's CuTe DSL kernels."""
    check_takes(case, frozenset({"x", "weight", "bias", "residual"}), OPTIONS)
    epsilon, prenorm = eps(case), bool(case.options.get("prenorm"))
    norm = load("quack.rmsnorm", "rmsnorm")
    return lambda inputs: norm(
        inputs["x"],
        inputs.get("weight"),
        bias=inputs.get("bias"),
        residual=inputs.get("residual"),
        eps=epsilon,
        prenorm=prenorm,
    )


PEERS = (
    Peer("torch", torch_formula, "torch"),
    Peer("torch.compile", torch_compile, "torch", costly=True),
    Peer("liger", liger, "liger-kernel"),
    Peer("liger_cute", liger_cute, "liger-kernel"),
    Peer("quack", quack, "quack-kernels"),
)
