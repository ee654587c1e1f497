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
    places = (("cpu", cpu, ()), ("cuda", cuda, (pytest.mark.gpu,)))
    return [
        pytest.param(
            room, case, device, *more, id="-".join(map(str, (room.name, case.name, device, *more))), marks=mark
        )
        for device, tags, mark in places
        for room in rooms()
        for case in room.tagged(*tags)
        for more in ([(one,) for one in extra] or [()])
    ]
