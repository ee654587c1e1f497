"""The cases of every room, as parameters of a test."""

from __future__ import annotations

from typing import Any

import pytest

from retrograd.ops.rooms import rooms


def each_case(*extra: tuple[Any, ...], cpu: bool = True, cuda: bool = True, tag: str = "test") -> list[Any]:
    """(room, case, device), and one of `extra` each: on a CPU the cases with the tag, on a GPU those tagged gpu too."""
    return [
        pytest.param(
            room, case, device, *more, id="-".join(map(str, (room.name, case.name, device, *more))), marks=marks
        )
        for device, tags, marks in (("cpu", (tag,), ()), ("cuda", (tag, "gpu"), (pytest.mark.gpu,)))
        for room in rooms()
        for case in room.tagged(*tags)
        for more in (extra or ((),))
        if (cpu if device == "cpu" else cuda)
    ]


CASE = ("room", "case", "device")
