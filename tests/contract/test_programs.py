"""The promises of every program, for every architecture; nothing is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from retrograd.core.arch import SUPPORTED
from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.ops.rooms import rooms
from retrograd.testing import programs
from retrograd.testing.parts import batch_size, is_packed


def of_rooms(*tags: str) -> list[Any]:
    """(room, case, architecture)."""
    return [
        pytest.param(room, case, arch, id=f"{room.name}-{case.name}-{arch}")
        for room in rooms()
        for case in room.tagged(*tags)
        for arch in SUPPORTED
    ]


BATCHED = [p for p in of_rooms("test", "gpu") if batch_size(*p.values[:2]) or is_packed(p.values[1])]


@pytest.mark.parametrize(("room", "case", "arch"), of_rooms("test", "gpu", "bench"))
def test_kernels_name_what_they_read_before_what_they_write(room: Room, case: Case, arch: str) -> None:
    programs.check_order(room, case, SUPPORTED[arch])


@pytest.mark.parametrize(("room", "case", "arch"), BATCHED)
def test_the_number_of_rows_does_not_decide_the_binary(room: Room, case: Case, arch: str) -> None:
    programs.check_same_binaries(room, case, SUPPORTED[arch], 1, 2, 3, 16, 64, 1021, 2**20)
