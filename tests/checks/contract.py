"""What every op promises about its results, one function for each promise; each raises AssertionError if it is broken.

The functions take a `OpInfo`, so that tests can pass a info with a broken function: `test_mutations.py` shows that each
check can fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from retrograd.opinfo.cases import Case
from retrograd.opinfo.info import OpInfo
from retrograd.testing.budget import FEW_DRAWS, MOST_DRAWS, SLACK, draws_for
from retrograd.testing.compare import assert_same_bits, assert_within_budget
from retrograd.testing.draw import Arrays, call, draw, draw_gradients, options, output_name, plain_and_exact
from retrograd.testing.poison import poisoned
from retrograd.testing.verify import Framework, run, verify

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

COPIES = 3  # of a batch, concatenated into one batch


def check_errors(
    info: OpInfo, case: Case, device: str, seed: int, framework: Framework = "torch", most_draws: int = MOST_DRAWS
) -> None:
    """Every output and gradient is within its error budget, bitwise repeatable, and written in full."""
    for check in verify(info, case, framework, device, seed, most_draws):
        where = f"{info.name}, {case.name}, {framework} on {device}: {check.quantity}"
        assert check.error <= check.budget, f"{where}: error {check.error:.3g}, budget {check.budget:.3g}"
        assert check.repeats, f"{where}: two runs differ"


def check_repeats(info: OpInfo, case: Case, device: str, seed: int, runs: int = 3) -> None:
    """Runs are bitwise equal, also with the same values elsewhere in memory."""
    inputs, gradients = drawn(info, case, device, seed)
    first = call(info.torch, inputs, options(case), gradients)
    for _ in range(runs - 1):
        moved = {name: tensor.clone() for name, tensor in inputs.items()}
        with poisoned():
            again = call(info.torch, moved, options(case), [g.clone() for g in gradients])
        assert_same_bits(again, first, f"{info.name}, {case.name}: two runs")


def check_batch_invariance(info: OpInfo, case: Case, device: str, seed: int, layout: str | None = None) -> None:
    """Rows have bitwise the same outputs and gradients alone and in the batch, both as views of it and as copies.

    The same holds in a batch that contains the rows several times. With a `layout`, the batch has that layout.
    """
    inputs, gradients = drawn(info, case, device, seed)
    if layout is not None:
        inputs = laid_out(layout, inputs)
        gradients = list(laid_out(layout, named_outputs(gradients)).values())
    whole = call(info.torch, inputs, options(case), gradients)
    for start, stop in slices(info, case):
        expected = rows_of(info, case, whole, start, stop)
        for copied in (False, True):
            part, part_gradients = take(info, case, inputs, gradients, start, stop)
            if copied:
                part, part_gradients = copies_of(part), list(copies_of(named_outputs(part_gradients)).values())
            alone = call(info.torch, part, options(case), part_gradients)
            where = f"{info.name}, {case.name}: rows {start}:{stop} {'copied' if copied else 'in place'}"
            assert_same_bits({name: alone[name] for name in expected}, expected, where)
    if size := batch_size(info, case):
        more = [list(repeated(info, case, named_outputs(gradients), COPIES).values())]
        again = call(info.torch, repeated(info, case, inputs, COPIES), options(case), *more)
        expected = rows_of(info, case, whole, 0, size)
        for i in range(COPIES):
            found = rows_of(info, case, again, i * size, (i + 1) * size)
            assert_same_bits(found, expected, f"{info.name}, {case.name}: copy {i} of the batch among {COPIES}")


def check_packed(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """A packed sequence has bitwise the same outputs and gradients alone, packed, and packed with sequences of NaN."""
    if not is_packed(case):
        return
    inputs, gradients = drawn(info, case, device, seed)
    with poisoned():
        together = call(info.torch, inputs, options(case), gradients)
    own = having(info, case, together, time_axis, sequence_axis)
    places = range(min(map(len, bounds_in(case).values())) - 1)
    for kept in (0, 1):
        arrays = copies_of(inputs), copies_of(named_outputs(gradients))
        for place in places[1 - kept :: 2]:
            for tensors in arrays:
                theirs = having(info, case, tensors, time_axis, sequence_axis)
                plant_nan(sequence(info, case, theirs, place))
        beside = call(info.torch, arrays[0], options(case), list(arrays[1].values()))
        for place in places[kept::2]:
            expected = sequence(info, case, own, place)
            found = sequence(info, case, beside, place)
            where = f"{info.name}, {case.name}: sequence {place} beside NaN"
            assert_same_bits({name: found[name] for name in expected}, expected, where)
    for place in places:
        expected = sequence(info, case, own, place)
        for copied in (False, True):
            part = sequence(info, case, inputs, place)
            incoming = sequence(info, case, named_outputs(gradients), place)
            if copied:
                part, incoming = copies_of(part), copies_of(incoming)
            alone = call(info.torch, part, options(case), list(incoming.values()))
            where = f"{info.name}, {case.name}: sequence {place} {'copied' if copied else 'in place'}"
            assert_same_bits({name: alone[name] for name in expected}, expected, where)


def check_outside(info: OpInfo, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """Steps outside of every packed sequence have results of zero, and affect no other result even if they are NaN."""
    if not has_gaps(info, case):
        return
    inputs, gradients = drawn(info, case, device, seed)
    arrays = copies_of(inputs), copies_of(named_outputs(gradients))
    for tensors in arrays:
        for part in outside(info, case, tensors):
            plant_nan(part)
    expected = run(info, case, framework, inputs, gradients)
    found = run(info, case, framework, arrays[0], list(arrays[1].values()))
    where = f"{info.name}, {case.name}, {framework}: outside of every sequence"
    for part in outside(info, case, found):
        for name, tensor in part.items():
            assert not tensor.any(), f"{where}, {name} is not zero"
        assert_same_bits(part, {name: torch.zeros_like(part[name]) for name in part}, f"{where}, beside zeros")
    assert_same_bits(found, expected, f"{where}, with NaN and without")


def outside(info: OpInfo, case: Case, arrays: Mapping[str, Tensor]) -> Iterator[Arrays]:
    """The steps before the first packed sequence and those after the last, as views."""
    for name, bounds in bounds_in(case).items():
        along_time = having(info, case, arrays, time_axis)
        own = {array: tensor for array, tensor in along_time.items() if bounds_of(info, array) == name}
        steps = length(info, case, next(array for array in info.time_axis if bounds_of(info, array) == name))
        for start, stop in ((0, bounds[0]), (bounds[-1], steps)):
            yield cut(info, case, own, time_axis, start, stop)


def plant_nan(tensors: Mapping[str, Tensor]) -> None:
    """Fill the tensors with NaN."""
    for tensor in tensors.values():
        tensor.fill_(torch.nan)


def has_gaps(info: OpInfo, case: Case) -> bool:
    """Whether the packed sequences of a case leave steps uncovered."""
    bounds = bounds_in(case).get(bounds_of(info, "y"))
    return bounds is not None and (bounds[0] > 0 or bounds[-1] < length(info, case))


def check_state_passing(info: OpInfo, case: Case, device: str, seed: int) -> None:
    """A sequence in two parts, the second starting from the final state of the first, has the results of the whole.

    So do its gradients, which propagate through the state. The plain computation is cut in the same way.
    """
    if not passes_state(info, case):
        return
    steps = length(info, case)
    for first in sorted({min(1, steps), steps // 2}):
        draws: list[tuple[Arrays, Arrays, Arrays]] = []
        for i in range(min(draws_for(case), FEW_DRAWS)):
            inputs, gradients = drawn(info, case, device, seed * 1000 + i)
            plain_parts = in_parts(info, case, info.plain or info.reference, (0, first, steps))
            plain = call(plain_parts, inputs, options(case), gradients)
            _, exact = plain_and_exact(info.reference, case, inputs, gradients, info.plain)
            with poisoned():
                found = call(in_parts(info, case, info.torch, (0, first, steps)), inputs, options(case), gradients)
            draws.append((found, plain, exact))
        where = f"{info.name}, {case.name}: {first} steps, then the rest from their state"
        assert_within_budget(draws, where, SLACK)


def passes_state(info: OpInfo, case: Case) -> bool:
    """Whether a case can be cut in two along time."""
    return bool(info.time_axis) and bool(case.options.get("return_final_state")) and not is_packed(case)


def check_structures(info: OpInfo, case: Case, device: str, seed: int, runs: int = 1) -> None:
    """All sequences of kernels among which a plan may choose compute the same bits, in `runs` runs of each."""
    inputs, gradients = drawn(info, case, device, seed)
    before: tuple[str, Arrays] | None = None
    for name, structure in info.structures.items():
        function = structure(info).torch
        for _ in range(runs):
            found = call(function, inputs, options(case), gradients)
            if before:
                assert_same_bits(found, before[1], f"{info.name}, {case.name}: {name} and {before[0]}")
            before = name, found


def check_layout(info: OpInfo, case: Case, layout: str, device: str, seed: int, once: bool = False) -> None:
    """Arrays may have any strides: checked for inputs and incoming gradients together, and for gradients alone.

    With `once`, one draw of the former is checked with a larger budget, which still detects a wrong stride.
    """
    both = ("gradients",) if layout in info.gradients_only else ("inputs and gradients", "gradients")
    for which in both[:1] if once else both:
        draws: list[tuple[Arrays, Arrays, Arrays]] = []
        for i in range(min(draws_for(case), 1 if once else FEW_DRAWS)):
            inputs, gradients = drawn(info, case, device, seed * 1000 + i)
            if which != "gradients":
                inputs = laid_out(layout, inputs)
            gradients = list(laid_out(layout, named_outputs(gradients)).values())
            plain, exact = plain_and_exact(info.reference, case, inputs, gradients, info.plain)
            with poisoned():
                draws.append((call(info.torch, inputs, options(case), gradients), plain, exact))
        where = f"{info.name}, {case.name}: {layout} {which}"
        assert_within_budget(draws, where, SLACK**2 if once else SLACK)


def drawn(info: OpInfo, case: Case, device: str, seed: int) -> tuple[Arrays, list[Tensor]]:
    """Draw the inputs of a case and a gradient for each output."""
    inputs = draw(case, device, seed)
    return inputs, draw_gradients(info.reference, case, inputs, seed)


def slices(info: OpInfo, case: Case) -> list[tuple[int, int]]:
    """Ranges of the batch that are tested alone: the first, the middle and the last row, and the last two rows."""
    size = batch_size(info, case)
    if not size:
        return []
    middle = size // 2
    return sorted({(0, 1), (middle, middle + 1), (size - 1, size), (max(0, size - 2), size)} - {(0, size)})


def named_outputs(tensors: Sequence[Tensor]) -> Arrays:
    """Outputs, or their gradients, by output name."""
    return {output_name(i): tensor for i, tensor in enumerate(tensors)}


def take(
    info: OpInfo, case: Case, inputs: Mapping[str, Tensor], gradients: Sequence[Tensor], start: int, stop: int
) -> tuple[Arrays, list[Tensor]]:
    """A range of the batch, as views."""
    rows = cut(info, case, named_outputs(gradients), batch_axis, start, stop)
    return cut(info, case, inputs, batch_axis, start, stop), list(rows.values())


def rows_of(info: OpInfo, case: Case, results: Mapping[str, Tensor], start: int, stop: int) -> Arrays:
    """A range of the batch of every result with a batch axis: all but the gradients of arguments that rows share."""
    return cut(info, case, having(info, case, results, batch_axis), batch_axis, start, stop)


def copies_of(tensors: Mapping[str, Tensor]) -> Arrays:
    """Dense copies of the tensors."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
