"""The `OpInfo` of linear_scan: its record for the contract, the benchmarks and the command line."""

from __future__ import annotations

from dataclasses import replace

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import OP


def one_pass(info: OpInfo) -> OpInfo:
    """The variant in which each tile passes its state to the next."""
    return info.variant(replan=lambda plan: replace(plan, one_pass=True))


def three_kernels(info: OpInfo) -> OpInfo:
    """The variant with three kernels: reduce, carry, scan."""
    return info.variant(replan=lambda plan: replace(plan, one_pass=False))


INFO = OpInfo.of(
    OP,
    cases=CASES,
    reference=reference.linear_scan,
    structures={"one pass": one_pass, "three kernels": three_kernels},
)
