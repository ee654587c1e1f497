"""The cases of every room, as parameters of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.ops.rooms import rooms

CASE = ("room", "case", "device")
CPU: tuple[str, ...] = ("test",)
SMALL: tuple[str, ...] = ("interpreter",)  # for what has nothing to do with the size of a case
CUDA = ("test", "gpu")
FEW = Room.stands_for_others


def each_case(
    *extra: Any,
    cpu: tuple[str, ...] = CPU,
    cuda: tuple[str, ...] = CUDA,
    only: Callable[[Room, Case], bool] = lambda room, case: True,
    each: Callable[[Room, Case], Sequence[Any]] | None = None,
    spread: bool = False,
) -> list[Any]:
    """The cases with one of the tags of the device, as (room, case, device), and what the test needs beside.

    Args:
        extra: with each of these in turn, if there are any.
        cpu: the tags on a CPU.
        cuda: the tags on a GPU.
        only: which of these cases.
        each: gives the extra parameters of a case, where they depend on it.
        spread: share the extra parameters out among those of an op's cases that have the same ones: a few for each, the
            rest is `slow`.
    """
    found = []
    for device, tags, marks in (("cpu", cpu, ()), ("cuda", cuda, (pytest.mark.gpu,))):
        for room in rooms():
            cases = [case for case in room.tagged(*tags) if only(room, case)]
            extras = {case.name: list(each(room, case) if each else extra) for case in cases}
            for case in cases:
                more = extras[case.name]
                alike = [name for name, other in extras.items() if other == more]
                few = -(-len(more) // len(alike)) if spread else len(more)
                first = alike.index(case.name) * few
                for place, given in enumerate([(one,) for one in more] if each or extra else [()]):
                    name = "-".join(map(str, (room.name, case.name, device, *given)))
                    later = spread and (place - first) % len(more) >= few
                    found.append(
                        pytest.param(
                            room, case, device, *given, id=name, marks=(*marks, pytest.mark.slow) if later else marks
                        )
                    )
    return found
