"""A call whose first arguments lie in one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..op import Op, Stack
from .checks import checker
from .op import Results, bind


def bind_stack(op: Op, stack: Stack) -> Callable[[dict[str, Any], dict[str, Any]], Results]:
    """The function from arrays and options of the stack's function, two dicts by name, to the op's results."""
    apart, check = bind(op), checker(stack.call, rows=True)
    sources = stack.sources(op)
    before = (slice(None),) * stack.axis

    def call(arrays: dict[str, Any], options: dict[str, Any]) -> Results:
        arrays, options = check(arrays, options)
        whole = arrays[stack.name]
        parts = {name: whole[(*before, place)] for place, name in enumerate(stack.arguments)}
        return apart(parts | {name: arrays[source] for name, source in sources.items()}, options)

    return call
