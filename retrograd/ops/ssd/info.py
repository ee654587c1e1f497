"""The record of ssd for the contract, the benchmarks and the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import BORDER, OP

ALL = sys.maxsize


def cut(share: float, slots: int = 1, columns: int = 32) -> Callable[[OpInfo], OpInfo]:
    """A function from the `OpInfo` to its variant in which, on Hopper, a share of the walks is cut into spans.

    Without cuts, a program of `pairs` takes one block of heads and a program of `middle` one head; with cuts, both take
    all heads of a group, or as many as they have room for.

    Args:
        share: the share of the walks.
        slots: slots of a span.
        columns: states of a program of `ahead`.
    """

    def recut(plan: Any) -> Any:
        if not hasattr(plan, "spans"):
            return plan  # of the Triton kernels, which cut no walks
        each = ALL if share else 1
        return replace(plan, spans=plan.spans.recut(share, slots), columns=columns, together=each, sharing=each)

    return lambda info: info.variant(replan=recut)


INFO = OpInfo.of(
    OP,
    cases=CASES,
    reference=reference.ssd,
    plain=reference.plain,
    continues=BORDER,
    tensor_core_sums=True,
    structures={
        "whole sequences": cut(0.0),
        "spans of a slot": cut(1.0),
        "half of them in spans of three slots": cut(0.5, 3, 128),
    },
)
