"""The cases of every room, as parameters of a test."""

from __future__ import annotations

from typing import Any

import pytest

from retrograd.ops.rooms import rooms

CASE = ("room", "case", "device")
CPU: tuple[str, ...] = ("test",)
SMALL: tuple[str, ...] = ("interpreter",)  # for what has nothing to do with the size of a case
CUDA = ("test", "gpu")


def each_case(*extra: Any, cpu: tuple[str, ...] = CPU, cuda: tuple[str, ...] = CUDA) -> list[Any]:
    """(room, case, device), and one of `extra`, if there are any: the cases with one of the tags of the device."""
    found = []
    for device, tags, marks in (("cpu", cpu, ()), ("cuda", cuda, (pytest.mark.gpu,))):
        for room in rooms():
            for case in room.tagged(*tags):
                for more in [(one,) for one in extra] if extra else [()]:
                    name = "-".join(map(str, (room.name, case.name, device, *more)))
                    found.append(pytest.param(room, case, device, *more, id=name, marks=marks))
    return found
