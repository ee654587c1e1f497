"""The annotations of the public functions accept every case of every op and reject a wrong shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError, jaxtyped

from retrograd.core.cases import Case
from retrograd.core.room import Room
from retrograd.ops.rooms import room, rooms
from retrograd.testing.draw import draw, options
from retrograd.testing.jax_call import to_jax

beartype = pytest.importorskip("beartype").beartype  # a GPU machine may not have it

EACH_ROOM = pytest.mark.parametrize("room", rooms(), ids=lambda room: room.name)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    wrapped: Callable[..., Any] = jaxtyped(typechecker=beartype)(function)
    return wrapped


def small(room: Room) -> list[Case]:
    return [case for case in room.cases if case.tags & {"interpreter", "strided"}] or room.tagged("test")


@EACH_ROOM
def test_every_case_passes_the_annotations_in_pytorch(room: Room) -> None:
    function = checked(room.torch)
    for case in small(room):
        function(**draw(case, "cpu", 0), **options(case))


@EACH_ROOM
def test_every_case_passes_the_annotations_in_jax(room: Room) -> None:
    function = checked(room.jax())
    for case in [case for case in small(room) if room.is_representative(case)][:4]:
        inputs = {name: to_jax(tensor) for name, tensor in draw(case, "cpu", 0).items()}
        function(**inputs, **case.options)


def test_an_array_of_another_shape_does_not() -> None:
    norm = checked(room("rms_norm").torch)
    with pytest.raises(TypeCheckError):
        norm(torch.ones(2, 8), torch.ones(4))
