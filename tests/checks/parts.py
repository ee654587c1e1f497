"""Parts of a case and of its results: a range of the batch, a range of steps, one packed sequence.

Arrays have the names of `draw.call`: arguments their own, results `y`, `output 1`, ..., gradients `d x`. An array
shared by all parts (a parameter, a broadcast decay) has no axis along which it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.draw import Arrays, Function, outputs

PACKED = "cu_seqlens"  # the name of boundaries, or how it begins
STATE = "initial_state"
Axis = Callable[[OpInfo, Case, str], int | None]


def batch_axis(info: OpInfo, case: Case, name: str) -> int | None:
    """The batch axis of an array; outputs have the same one as the first argument."""
    return argument_axis(case, info.batch_axis, name, info.batch_axis.get(info.arguments[0]))


def time_axis(info: OpInfo, case: Case, name: str) -> int | None:
    """The time axis of an array; a state has none."""
    first = info.time_axis.get(info.arguments[0]) if name == "y" else None
    return argument_axis(case, of_time(info, name), name, info.time_axis.get(name, first))


def of_time(info: OpInfo, name: str) -> dict[str, int]:
    """The arguments with the same time as an array, and their axis of it."""
    own = bounds_of(info, name)
    return {other: axis for other, axis in info.time_axis.items() if bounds_of(info, other) == own}


def bounds_of(info: OpInfo, name: str) -> str:
    """The name of the boundaries along an array's axis of time."""
    return info.bounds.get(name.removeprefix("d "), PACKED)


def bounds_in(case: Case) -> dict[str, tuple[int, ...]]:
    """The boundaries of a case by name."""
    return {name: tensor.values or () for name, tensor in case.inputs.items() if name.startswith(PACKED)}


def sequence_axis(info: OpInfo, case: Case, name: str) -> int | None:
    """The axis along which an array has one entry for each sequence."""
    state = name != "y" and time_axis(info, case, name) is None
    return argument_axis(case, info.sequence_axis, name, 0 if state else None)


def argument_axis(case: Case, named: Mapping[str, int], name: str, of_outputs: int | None) -> int | None:
    """The axis of an argument or its gradient, None if it is shared; `of_outputs` for an output."""
    gradient = name.startswith("d ")
    argument = name.removeprefix("d ")
    if argument not in case.inputs:
        return None if gradient else of_outputs
    sizes = sizes_along(case, named)
    return named[argument] if argument in sizes and sizes[argument] == broadcast_size(sizes) else None


def sizes_along(case: Case, named: Mapping[str, int]) -> dict[str, int]:
    """The size of every argument along its axis, for the arguments that have one and are not shared."""
    return {
        name: case.inputs[name].shape[axis]
        for name, axis in named.items()
        if name in case.inputs and name not in case.shared
    }


def broadcast_size(sizes: Mapping[str, int]) -> int:
    """The common size of axes of which some may have size 1."""
    return 0 if 0 in sizes.values() else max(sizes.values(), default=1)


def batch_size(info: OpInfo, case: Case) -> int:
    """The number of independent rows of a case along its batch axis; 0 for a case without one, packed or empty."""
    first = info.arguments[0]
    shape = case.inputs[first].shape
    if first not in info.batch_axis or is_packed(case) or len(shape) < 2 or 0 in shape or not info.alone(case):
        return 0
    return broadcast_size(sizes_along(case, info.batch_axis))


def length(info: OpInfo, case: Case, name: str = "y") -> int:
    """The number of steps along the time axis of an array, by default of the results."""
    return broadcast_size(sizes_along(case, of_time(info, name)))


def is_packed(case: Case) -> bool:
    """Whether the case has packed sequences."""
    return bool(bounds_in(case))


def cut(info: OpInfo, case: Case, tensors: Mapping[str, Tensor], axis: Axis, start: int, stop: int) -> Arrays:
    """A range along an axis, as views; arrays without the axis are returned whole."""
    places = {name: axis(info, case, name) for name in tensors}
    return {
        name: tensor if (place := places[name]) is None else tensor.narrow(place, start, stop - start)
        for name, tensor in tensors.items()
    }


def having(info: OpInfo, case: Case, tensors: Mapping[str, Tensor], *axes: Axis) -> Arrays:
    """The arrays that have at least one of the axes."""
    return {
        name: tensor for name, tensor in tensors.items() if any(axis(info, case, name) is not None for axis in axes)
    }


def repeated(info: OpInfo, case: Case, tensors: Mapping[str, Tensor], copies: int) -> Arrays:
    """The batch concatenated with itself, `copies` times in all."""
    return {
        name: tensor if (axis := batch_axis(info, case, name)) is None else torch.cat([tensor] * copies, axis)
        for name, tensor in tensors.items()
    }


def sequence(info: OpInfo, case: Case, tensors: Mapping[str, Tensor], place: int) -> Arrays:
    """The packed sequence of number `place` as a batch of one, as views."""
    bounds = bounds_in(case)
    steps: Arrays = {}
    for name, tensor in tensors.items():
        start, stop = bounds.get(bounds_of(info, name), next(iter(bounds.values())))[place : place + 2]
        steps |= cut(info, case, {name: tensor}, time_axis, start, stop)
    alone = cut(info, case, steps, sequence_axis, place, place + 1)
    return {name: tensor for name, tensor in alone.items() if name not in bounds}


def span(info: OpInfo, case: Case, tensors: Mapping[str, Tensor], start: int, stop: int) -> Arrays:
    """A range of steps, as views, counted from where the recurrence begins: from the end if `reverse` is set."""
    if case.options.get("reverse"):
        start, stop = length(info, case) - stop, length(info, case) - start
    return cut(info, case, tensors, time_axis, start, stop)


def in_parts(info: OpInfo, case: Case, function: Function, bounds: Sequence[int]) -> Function:
    """The function called once for each range between bounds, each call starting from the state of the one before."""
    names = tuple(case.inputs)

    def parts(first: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
        tensors = {names[0]: first} | {name: rest.pop(name) for name in (*names[1:], STATE) if name in rest}
        ys = []
        for start, stop in pairwise(bounds):
            y, state = outputs(function, span(info, case, tensors, start, stop), rest)
            ys.append(y)
            tensors = tensors | {STATE: state}
        axis = time_axis(info, case, "y")
        assert axis is not None
        return torch.cat(ys[::-1] if case.options.get("reverse") else ys, axis), state

    return parts
