"""What every op promises about its numbers, one function a promise; each raises AssertionError where it is broken.

The functions take a `Room`, so that a room with a broken function in it can be passed: `tests/test_mutations.py` shows
that each of them can fail.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from retrograd.core.cases import Case
from retrograd.core.room import Room

from .budget import draws_for
from .compare import assert_same_bits, assert_within_budget
from .draw import Arrays, call, draw, draw_gradients, options, plain_and_exact
from .layouts import GRADIENTS_ONLY, LAYOUTS
from .poison import poisoned
from .verify import Framework, verify


def check_errors(room: Room, case: Case, device: str, seed: int, framework: Framework = "torch") -> None:
    """Every output and every gradient keeps its error budget and repeats to the bit; no element is left unwritten."""
    for check in verify(room, case, framework, device, seed):
        where = f"{room.name}, {case.name}, {framework} on {device}: {check.quantity}"
        assert check.error <= check.budget, f"{where}: error {check.error:.3g}, budget {check.budget:.3g}"
        assert check.repeats, f"{where}: two runs differ"


def check_repeats(room: Room, case: Case, device: str, seed: int, runs: int = 3) -> None:
    """Runs agree to the bit, also when the same values lie elsewhere in memory."""
    inputs, gradients = drawn(room, case, device, seed)
    first = call(room.torch, inputs, options(case), gradients)
    for _ in range(runs - 1):
        moved = {name: tensor.clone() for name, tensor in inputs.items()}
        with poisoned():
            again = call(room.torch, moved, options(case), [g.clone() for g in gradients])
        assert_same_bits(again, first, f"{room.name}, {case.name}: two runs")


def check_batch_invariance(room: Room, case: Case, device: str, seed: int) -> None:
    """Rows have the same outputs and gradients, to the bit, alone as in the batch; as views of it and copied out."""
    inputs, gradients = drawn(room, case, device, seed)
    whole = call(room.torch, inputs, options(case), gradients)
    for start, stop in slices(room, case):
        for copied in (False, True):
            part, part_gradients = take(room, inputs, gradients, start, stop)
            if copied:
                part = {name: tensor.clone() for name, tensor in part.items()}
                part_gradients = [gradient.clone() for gradient in part_gradients]
            alone = call(room.torch, part, options(case), part_gradients)
            where = f"{room.name}, {case.name}: rows {start}:{stop} {'copied' if copied else 'in place'}"
            expected = rows_of(room, whole, start, stop)
            assert_same_bits({name: alone[name] for name in expected}, expected, where)


def check_layout(room: Room, case: Case, layout: str, device: str, seed: int) -> None:
    """Arrays of any strides are taken: inputs and incoming gradients together, and gradients by themselves."""
    lay = LAYOUTS[layout]
    for which in ("gradients",) if layout in GRADIENTS_ONLY else ("inputs and gradients", "gradients"):
        draws: list[tuple[Arrays, Arrays, Arrays]] = []
        for i in range(draws_for(case, same_rows=layout == "broadcast_rows")):
            inputs, gradients = drawn(room, case, device, seed * 1000 + i)
            if which != "gradients":
                inputs = {name: lay(tensor) for name, tensor in inputs.items()}
            gradients = [lay(gradient) for gradient in gradients]
            plain, exact = plain_and_exact(room.reference, case, inputs, gradients)
            with poisoned():
                draws.append((call(room.torch, inputs, options(case), gradients), plain, exact))
        assert_within_budget(draws, f"{room.name}, {case.name}: {layout} {which}")


def drawn(room: Room, case: Case, device: str, seed: int) -> tuple[Arrays, list[Tensor]]:
    """Inputs of a case and a gradient for each output."""
    inputs = draw(case, device, seed)
    return inputs, draw_gradients(room.reference, case, inputs, seed)


def batch_size(room: Room, case: Case) -> int:
    """Independent rows of a case along its batch axis; 0 where an array has no dimension to spare for a batch."""
    first = room.arguments[0]
    shape = case.inputs[first].shape
    if first not in room.batch_axis or len(shape) < 2 or 0 in shape:
        return 0
    return shape[room.batch_axis[first]]


def slices(room: Room, case: Case) -> list[tuple[int, int]]:
    """Ranges of the batch that are tried alone: the first, a middle and the last row, and two neighbours."""
    size = batch_size(room, case)
    if not size:
        return []
    middle = size // 2
    return sorted({(0, 1), (middle, middle + 1), (size - 1, size), (max(0, size - 2), size)})


def take(
    room: Room, inputs: Mapping[str, Tensor], gradients: list[Tensor], start: int, stop: int
) -> tuple[Arrays, list[Tensor]]:
    """A range of the batch, as views; an output has its batch where the first argument has it."""
    part = {
        name: tensor.narrow(room.batch_axis[name], start, stop - start) if name in room.batch_axis else tensor
        for name, tensor in inputs.items()
    }
    axis = room.batch_axis[room.arguments[0]]
    return part, [gradient.narrow(axis, start, stop - start) for gradient in gradients]


def rows_of(room: Room, results: Mapping[str, Tensor], start: int, stop: int) -> Arrays:
    """A range of the batch of every result that has a batch: all but the gradients of parameters."""
    axes = {f"d {name}": axis for name, axis in room.batch_axis.items()}
    axis = room.batch_axis[room.arguments[0]]
    return {
        name: tensor.narrow(axes.get(name, axis), start, stop - start)
        for name, tensor in results.items()
        if name in axes or not name.startswith("d ")
    }
