"""One step of generation, for both frameworks: a sequence of one step, so that it has the bits of a longer one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .spec import ARGUMENTS

OF_STEPS = ("x", "dt", "B", "C", "z")


def update(call: Callable[..., Any], arrays: Mapping[str, Any], dt_softplus: bool) -> tuple[Any, Any]:
    """(y, the new state) of a framework's `bind(OP)`, from checked arrays without a dimension of time."""
    given = dict(arrays)
    for name in OF_STEPS:
        if given[name] is not None:
            given[name] = given[name][:, None]
    given["initial_state"] = given.pop("state")
    y, state = call(tuple(given.get(name) for name in ARGUMENTS), (dt_softplus, True))
    return y[:, 0], state
