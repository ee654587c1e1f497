"""What every op promises about its results, one function for each promise; each raises AssertionError if it is broken.

The functions take a `Room`, so that tests can pass a room with a broken function: `test_mutations.py` shows that each
check can fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from .budget import FEW_DRAWS, MOST_DRAWS, SLACK, draws_for
from .compare import assert_same_bits, assert_within_budget
from .draw import Arrays, call, draw, draw_gradients, options, output_name, plain_and_exact
from .layouts import laid_out
from .parts import (
    batch_axis,
    batch_size,
    bounds_in,
    bounds_of,
    cut,
    having,
    in_parts,
    is_packed,
    length,
    repeated,
    sequence,
    sequence_axis,
    time_axis,
)
from .poison import poisoned
from .verify import Framework, run, verify

COPIES = 3  # of a batch, concatenated into one batch


def check_errors(
    room: Room, case: Case, device: str, seed: int, framework: Framework = "torch", most_draws: int = MOST_DRAWS
) -> None:
    """Every output and gradient is within its error budget, bitwise repeatable, and written in full."""
    for check in verify(room, case, framework, device, seed, most_draws):
        where = f"{room.name}, {case.name}, {framework} on {device}: {check.quantity}"
        assert check.error <= check.budget, f"{where}: error {check.error:.3g}, budget {check.budget:.3g}"
        assert check.repeats, f"{where}: two runs differ"


def check_repeats(room: Room, case: Case, device: str, seed: int, runs: int = 3) -> None:
    """Runs are bitwise equal, also with the same values elsewhere in memory."""
    inputs, gradients = drawn(room, case, device, seed)
    first = call(room.torch, inputs, options(case), gradients)
    for _ in range(runs - 1):
        moved = {name: tensor.clone() for name, tensor in inputs.items()}
        with poisoned():
            again = call(room.torch, moved, options(case), [g.clone() for g in gradients])
        assert_same_bits(again, first, f"{room.name}, {case.name}: two runs")


def check_batch_invariance(room: Room, case: Case, device: str, seed: int, layout: str | None = None) -> None:
    """Rows have bitwise the same outputs and gradients alone and in the batch, both as views of it and as copies.

    The same holds in a batch that contains the rows several times. With a `layout`, the batch has that layout.
    """
    inputs, gradients = drawn(room, case, device, seed)
    if layout is not None:
        inputs = laid_out(layout, inputs)
        gradients = list(laid_out(layout, named_outputs(gradients)).values())
    whole = call(room.torch, inputs, options(case), gradients)
    for start, stop in slices(room, case):
        expected = rows_of(room, case, whole, start, stop)
        for copied in (False, True):
            part, part_gradients = take(room, case, inputs, gradients, start, stop)
            if copied:
                part, part_gradients = copies_of(part), list(copies_of(named_outputs(part_gradients)).values())
            alone = call(room.torch, part, options(case), part_gradients)
            where = f"{room.name}, {case.name}: rows {start}:{stop} {'copied' if copied else 'in place'}"
            assert_same_bits({name: alone[name] for name in expected}, expected, where)
    if size := batch_size(room, case):
        more = [list(repeated(room, case, named_outputs(gradients), COPIES).values())]
        again = call(room.torch, repeated(room, case, inputs, COPIES), options(case), *more)
        expected = rows_of(room, case, whole, 0, size)
        for i in range(COPIES):
            found = rows_of(room, case, again, i * size, (i + 1) * size)
            assert_same_bits(found, expected, f"{room.name}, {case.name}: copy {i} of the batch among {COPIES}")


def check_packed(room: Room, case: Case, device: str, seed: int) -> None:
    """A packed sequence has bitwise the same outputs and gradients alone, packed, and packed with sequences of NaN."""
    if not is_packed(case):
        return
    inputs, gradients = drawn(room, case, device, seed)
    with poisoned():
        together = call(room.torch, inputs, options(case), gradients)
    own = having(room, case, together, time_axis, sequence_axis)
    places = range(min(map(len, bounds_in(case).values())) - 1)
    for kept in (0, 1):
        arrays = copies_of(inputs), copies_of(named_outputs(gradients))
        for place in places[1 - kept :: 2]:
            for tensors in arrays:
                theirs = having(room, case, tensors, time_axis, sequence_axis)
                plant_nan(sequence(room, case, theirs, place))
        beside = call(room.torch, arrays[0], options(case), list(arrays[1].values()))
        for place in places[kept::2]:
            expected = sequence(room, case, own, place)
            found = sequence(room, case, beside, place)
            where = f"{room.name}, {case.name}: sequence {place} beside NaN"
            assert_same_bits({name: found[name] for name in expected}, expected, where)
    for place in places:
        expected = sequence(room, case, own, place)
        for copied in (False, True):
            part = sequence(room, case, inputs, place)
            incoming = sequence(room, case, named_outputs(gradients), place)
            if copied:
                part, incoming = copies_of(part), copies_of(incoming)
            alone = call(room.torch, part, options(case), list(incoming.values()))
            where = f"{room.name}, {case.name}: sequence {place} {'copied' if copied else 'in place'}"
            assert_same_bits({name: alone[name] for name in expected}, expected, where)


def check_outside(room: Room, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """Steps outside of every packed sequence have results of zero, and affect no other result even if they are NaN."""
    if not has_gaps(room, case):
        return
    inputs, gradients = drawn(room, case, device, seed)
    arrays = copies_of(inputs), copies_of(named_outputs(gradients))
    for tensors in arrays:
        for part in outside(room, case, tensors):
            plant_nan(part)
    expected = run(room, case, framework, inputs, gradients)
    found = run(room, case, framework, arrays[0], list(arrays[1].values()))
    where = f"{room.name}, {case.name}, {framework}: outside of every sequence"
    for part in outside(room, case, found):
        for name, tensor in part.items():
            assert not tensor.any(), f"{where}, {name} is not zero"
        assert_same_bits(part, {name: torch.zeros_like(part[name]) for name in part}, f"{where}, beside zeros")
    assert_same_bits(found, expected, f"{where}, with NaN and without")


def outside(room: Room, case: Case, arrays: Mapping[str, Tensor]) -> Iterator[Arrays]:
    """The steps before the first packed sequence and those after the last, as views."""
    for name, bounds in bounds_in(case).items():
        along_time = having(room, case, arrays, time_axis)
        own = {array: tensor for array, tensor in along_time.items() if bounds_of(room, array) == name}
        steps = length(room, case, next(array for array in room.time_axis if bounds_of(room, array) == name))
        for start, stop in ((0, bounds[0]), (bounds[-1], steps)):
            yield cut(room, case, own, time_axis, start, stop)


def plant_nan(tensors: Mapping[str, Tensor]) -> None:
    """Fill the tensors with NaN."""
    for tensor in tensors.values():
        tensor.fill_(torch.nan)


def has_gaps(room: Room, case: Case) -> bool:
    """Whether the packed sequences of a case leave steps uncovered."""
    bounds = bounds_in(case).get(bounds_of(room, "y"))
    return bounds is not None and (bounds[0] > 0 or bounds[-1] < length(room, case))


def check_state_passing(room: Room, case: Case, device: str, seed: int) -> None:
    """A sequence in two parts, the second starting from the final state of the first, has the results of the whole.

    So do its gradients, which propagate through the state. The plain computation is cut in the same way.
    """
    if not passes_state(room, case):
        return
    steps = length(room, case)
    for first in sorted({min(1, steps), steps // 2}):
        draws: list[tuple[Arrays, Arrays, Arrays]] = []
        for i in range(min(draws_for(case), FEW_DRAWS)):
            inputs, gradients = drawn(room, case, device, seed * 1000 + i)
            plain_parts = in_parts(room, case, room.plain or room.reference, (0, first, steps))
            plain = call(plain_parts, inputs, options(case), gradients)
            _, exact = plain_and_exact(room.reference, case, inputs, gradients, room.plain)
            with poisoned():
                found = call(in_parts(room, case, room.torch, (0, first, steps)), inputs, options(case), gradients)
            draws.append((found, plain, exact))
        where = f"{room.name}, {case.name}: {first} steps, then the rest from their state"
        assert_within_budget(draws, where, SLACK)


def passes_state(room: Room, case: Case) -> bool:
    """Whether a case can be cut in two along time."""
    return bool(room.time_axis) and bool(case.options.get("return_final_state")) and not is_packed(case)


def check_structures(room: Room, case: Case, device: str, seed: int, runs: int = 1) -> None:
    """All sequences of kernels among which a plan may choose compute the same bits, in `runs` runs of each."""
    inputs, gradients = drawn(room, case, device, seed)
    before: tuple[str, Arrays] | None = None
    for name, structure in room.structures.items():
        function = structure(room).torch
        for _ in range(runs):
            found = call(function, inputs, options(case), gradients)
            if before:
                assert_same_bits(found, before[1], f"{room.name}, {case.name}: {name} and {before[0]}")
            before = name, found


def check_layout(room: Room, case: Case, layout: str, device: str, seed: int, once: bool = False) -> None:
    """Arrays may have any strides: checked for inputs and incoming gradients together, and for gradients alone.

    With `once`, one draw of the former is checked with a larger budget, which still detects a wrong stride.
    """
    both = ("gradients",) if layout in room.gradients_only else ("inputs and gradients", "gradients")
    for which in both[:1] if once else both:
        draws: list[tuple[Arrays, Arrays, Arrays]] = []
        for i in range(min(draws_for(case), 1 if once else FEW_DRAWS)):
            inputs, gradients = drawn(room, case, device, seed * 1000 + i)
            if which != "gradients":
                inputs = laid_out(layout, inputs)
            gradients = list(laid_out(layout, named_outputs(gradients)).values())
            plain, exact = plain_and_exact(room.reference, case, inputs, gradients, room.plain)
            with poisoned():
                draws.append((call(room.torch, inputs, options(case), gradients), plain, exact))
        where = f"{room.name}, {case.name}: {layout} {which}"
        assert_within_budget(draws, where, SLACK**2 if once else SLACK)


def drawn(room: Room, case: Case, device: str, seed: int) -> tuple[Arrays, list[Tensor]]:
    """Draw the inputs of a case and a gradient for each output."""
    inputs = draw(case, device, seed)
    return inputs, draw_gradients(room.reference, case, inputs, seed)


def slices(room: Room, case: Case) -> list[tuple[int, int]]:
    """Ranges of the batch that are tested alone: the first, the middle and the last row, and the last two rows."""
    size = batch_size(room, case)
    if not size:
        return []
    middle = size // 2
    return sorted({(0, 1), (middle, middle + 1), (size - 1, size), (max(0, size - 2), size)} - {(0, size)})


def named_outputs(tensors: Sequence[Tensor]) -> Arrays:
    """Outputs, or their gradients, by output name."""
    return {output_name(i): tensor for i, tensor in enumerate(tensors)}


def take(
    room: Room, case: Case, inputs: Mapping[str, Tensor], gradients: Sequence[Tensor], start: int, stop: int
) -> tuple[Arrays, list[Tensor]]:
    """A range of the batch, as views."""
    rows = cut(room, case, named_outputs(gradients), batch_axis, start, stop)
    return cut(room, case, inputs, batch_axis, start, stop), list(rows.values())


def rows_of(room: Room, case: Case, results: Mapping[str, Tensor], start: int, stop: int) -> Arrays:
    """A range of the batch of every result with a batch axis: all but the gradients of arguments that rows share."""
    return cut(room, case, having(room, case, results, batch_axis), batch_axis, start, stop)


def copies_of(tensors: Mapping[str, Tensor]) -> Arrays:
    """Dense copies of the tensors."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
