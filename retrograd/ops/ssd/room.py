"""ssd as the contract, the benchmarks and the command line see it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retrograd.core.room import Room

from . import reference
from .cases import CASES
from .op import BORDER, OP

ALL = sys.maxsize


def cut(share: float, places: int = 1, columns: int = 32) -> Callable[[Room], Room]:
    """On Hopper this share of the walks is cut into spans of `places`.

    `ahead` takes so many states (`columns`) at once. `pairs` takes one block of heads and `middle` one head, or, where
    walks are cut, as many of a group as there are.
    """

    def recut(plan: Any) -> Any:
        if not hasattr(plan, "spans"):
            return plan  # of the kernels for any GPU, which cut nothing
        each = ALL if share else 1
        return replace(plan, spans=plan.spans.recut(share, places), columns=columns, together=each, sharing=each)

    return lambda room: room.variant(replan=recut)


ROOM = Room.of(
    OP,
    cases=CASES,
    reference=reference.ssd,
    plain=reference.plain,
    continues=BORDER,
    tensor_core_sums=True,
    structures={
        "whole sequences": cut(0.0),
        "spans of a place": cut(1.0),
        "half of them in spans of three places": cut(0.5, 3, 128),
    },
)
