"""The `OpInfo` of linear: its record for the contract, the benchmarks and the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrograd.opinfo.info import OpInfo

from . import reference
from .cases import CASES
from .op import OP


def tiles_for(rows: int) -> Callable[[OpInfo], OpInfo]:
    """The op with the tiles that a number of rows has, for any number."""

    def replan(plan: Any) -> Any:
        return plan.for_rows(rows)

    return lambda info: info.variant(replan=replan)


INFO = OpInfo.of(
    OP,
    cases=CASES,
    reference=reference.linear,
    tensor_core_sums=True,
    structures={f"tiles for {rows} rows": tiles_for(rows) for rows in (1, 12, 20, 64, 500, 2**14)},
)
