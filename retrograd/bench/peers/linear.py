"""Peers of linear in PyTorch."""

from __future__ import annotations

from torch.nn import functional

from retrograd.opinfo.cases import Case

from . import Function, Peer


def torch_linear(case: Case) -> Function:
    """PyTorch's own, by the BLAS."""
    return lambda inputs: functional.linear(inputs["x"], inputs["weight"], inputs.get("bias"))


PEERS = (Peer("torch", torch_linear, "torch"),)
