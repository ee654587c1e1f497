"""The `OpInfo` of selective_scan: its record for the contract, the benchmarks and the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .hopper.plan import Spans
from .op import OP


def spans_of(pieces: int) -> Callable[[OpInfo], OpInfo]:
    """The variant with spans of `pieces` pieces."""

    def replan(plan: Any) -> Any:
        return plan.cut(pieces) if isinstance(plan, Spans) else plan

    return lambda info: info.variant(replan=replan)


INFO = OpInfo.of(
    OP,
    cases=CASES,
    reference=reference.selective_scan,
    plain=reference.plain,
    continues=1,
    draws=4,  # the largest errors of the gradients of A, B and C are those of single elements
    tensor_core_sums=True,
    structures={
        "whole sequences": spans_of(2**20),
        "spans of a piece": spans_of(1),
        "spans of three pieces": spans_of(3),
    },
)
