"""Parts of a case and of its results: a range of the batch, a range of steps, one packed sequence.

Arrays go by the names of `draw.call`: arguments by their own, results as `y`, `output 1`, ..., gradients as `d x`. An
array that a part shares with the others (a parameter, a decay that is broadcast) has no axis to be cut along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from .draw import Arrays, Function, outputs

PACKED = "cu_seqlens"
STATE = "initial_state"
Axis = Callable[[Room, Case, str], int | None]


def batch_axis(room: Room, case: Case, name: str) -> int | None:
    """The axis of an array's rows; an output has it where the first argument has it."""
    return argument_axis(case, room.batch_axis, name, room.batch_axis.get(room.arguments[0]))


def time_axis(room: Room, case: Case, name: str) -> int | None:
    """The axis of an array's steps; the first output has it where the first argument has it, a state has none."""
    return argument_axis(case, room.time_axis, name, room.time_axis.get(room.arguments[0]) if name == "y" else None)


def sequence_axis(room: Room, case: Case, name: str) -> int | None:
    """The axis along which an array has one entry a sequence."""
    return argument_axis(case, room.sequence_axis, name, None if name == "y" else 0)


def argument_axis(case: Case, named: Mapping[str, int], name: str, of_outputs: int | None) -> int | None:
    """The axis of an argument or its gradient, as far as it is not shared; for an output, the one given."""
    gradient = name.startswith("d ")
    argument = name.removeprefix("d ")
    if argument not in case.inputs:
        return None if gradient else of_outputs
    sizes = sizes_along(case, named)
    return named[argument] if argument in sizes and sizes[argument] == broadcast_size(sizes) else None


def sizes_along(case: Case, named: Mapping[str, int]) -> dict[str, int]:
    """The size of every argument along its axis, as far as it has one."""
    return {
        name: case.inputs[name].shape[axis]
        for name, axis in named.items()
        if name in case.inputs and name not in case.shared
    }


def broadcast_size(sizes: Mapping[str, int]) -> int:
    """The common size of axes of which some may have size 1."""
    return 0 if 0 in sizes.values() else max(sizes.values(), default=1)


def batch_size(room: Room, case: Case) -> int:
    """Independent rows of a case along its batch axis; 0 where there is no dimension to spare for a batch."""
    first = room.arguments[0]
    shape = case.inputs[first].shape
    if first not in room.batch_axis or is_packed(case) or len(shape) < 2 or 0 in shape:
        return 0
    return broadcast_size(sizes_along(case, room.batch_axis))


def length(room: Room, case: Case) -> int:
    """Steps of a case."""
    return broadcast_size(sizes_along(case, room.time_axis))


def is_packed(case: Case) -> bool:
    """Whether its batch of one holds several sequences."""
    return PACKED in case.inputs


def cut(room: Room, case: Case, tensors: Mapping[str, Tensor], axis: Axis, start: int, stop: int) -> Arrays:
    """A range along an axis, as views; what has no such axis is left whole."""
    places = {name: axis(room, case, name) for name in tensors}
    return {
        name: tensor if (place := places[name]) is None else tensor.narrow(place, start, stop - start)
        for name, tensor in tensors.items()
    }


def having(room: Room, case: Case, tensors: Mapping[str, Tensor], *axes: Axis) -> Arrays:
    """The arrays that have one of the axes."""
    return {
        name: tensor for name, tensor in tensors.items() if any(axis(room, case, name) is not None for axis in axes)
    }


def repeated(room: Room, case: Case, tensors: Mapping[str, Tensor], copies: int) -> Arrays:
    """The batch several times over."""
    return {
        name: tensor if (axis := batch_axis(room, case, name)) is None else torch.cat([tensor] * copies, axis)
        for name, tensor in tensors.items()
    }


def sequence(room: Room, case: Case, tensors: Mapping[str, Tensor], place: int, start: int, stop: int) -> Arrays:
    """One packed sequence as a batch of one, as views; it starts and stops at these steps."""
    steps = cut(room, case, tensors, time_axis, start, stop)
    alone = cut(room, case, steps, sequence_axis, place, place + 1)
    return {name: tensor for name, tensor in alone.items() if name != PACKED}


def span(room: Room, case: Case, tensors: Mapping[str, Tensor], start: int, stop: int) -> Arrays:
    """A range of steps, as views, counted from where the recurrence begins: from the end on `reverse`."""
    if case.options.get("reverse"):
        start, stop = length(room, case) - stop, length(room, case) - start
    return cut(room, case, tensors, time_axis, start, stop)


def in_parts(room: Room, case: Case, function: Function, bounds: Sequence[int]) -> Function:
    """The function from one of the bounds to the next, each part from the state that the one before leaves."""
    names = tuple(case.inputs)

    def parts(first: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
        tensors = {names[0]: first} | {name: rest.pop(name) for name in (*names[1:], STATE) if name in rest}
        made = []
        for start, stop in pairwise(bounds):
            y, state = outputs(function, span(room, case, tensors, start, stop), rest)
            made.append(y)
            tensors = tensors | {STATE: state}
        axis = time_axis(room, case, "y")
        assert axis is not None
        return torch.cat(made[::-1] if case.options.get("reverse") else made, axis), state

    return parts
