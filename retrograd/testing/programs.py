"""What every program promises, checked without a GPU and without running it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.build import ALIGNMENT, build, signature
from retrograd.core.cases import Case
from retrograd.core.kernels.reduce import sum_rows
from retrograd.core.program import Array, Launch, Program
from retrograd.core.room import Room, spec_of
from retrograd.core.spec import Pass, arguments, options

from .parts import PACKED, batch_axis, broadcast_size, is_packed, sequence_axis, sizes_along
from .resources import reductions

MOST_ELEMENTS = 2**35  # of an array, in two bytes each


def launches(room: Room, case: Case, arch: Arch) -> Iterator[tuple[Program, Launch]]:
    """Every launch of a case's passes; one with no programs in it does not happen, and none on the portable path."""
    for program in room.programs(case, arch) or ():
        for launch in program.launches:
            if launch.grid:
                yield program, launch


def binary(program: Program, launch: Launch) -> tuple[Any, ...]:
    """All that decides which binary a launch runs."""
    return (
        launch.kernel,
        signature(launch, program.arrays),
        launch.num_warps,
        launch.num_stages,
        getattr(launch, "overlap", False),
    )


def check_order(room: Room, case: Case, arch: Arch) -> None:
    """Kernels take arrays first, those that they read before those that they write; every output is written.

    PyTorch's launcher fills in the addresses so, and XLA's tells inputs from outputs.
    """
    for program in room.programs(case, arch) or ():
        written = {array.name for array in program.inputs}
        for launch in program.launches:
            if not launch.grid:
                continue
            where = f"{room.name}, {case.name}, {arch.name}: {launch.kernel.__name__}"
            first = launch.kernel.arg_names[: len(launch.arrays)]
            assert first == list(launch.arrays), f"{where} does not take its arrays first: {first}"
            try:
                _, writes = program.reads_and_writes(launch, written)
            except ValueError as error:
                raise AssertionError(f"{room.name}, {case.name}, {arch.name}: {error}") from error
            assert writes, f"{where} writes nothing"
            written.update(writes)
        missing = [array.name for array in program.outputs if array.nbytes and array.name not in written]
        assert not missing, f"{room.name}, {case.name}, {arch.name}: nothing writes {missing}"


def resized(room: Room, case: Case, rows: int) -> Case:
    """The case with another number of rows along its batch axis, or of sequences where these are packed."""
    axis_of = sequence_axis if is_packed(case) else batch_axis

    def shape(name: str, old: tuple[int, ...]) -> tuple[int, ...]:
        if name == PACKED:
            return (rows + 1,)
        axis = axis_of(room, case, name)
        return old if axis is None else (*old[:axis], rows, *old[axis + 1 :])

    inputs = {
        name: replace(tensor, shape=shape(name, tensor.shape), values=None) for name, tensor in case.inputs.items()
    }
    return replace(case, inputs=inputs)


def check_same_binaries(room: Room, case: Case, arch: Arch, *counts: int) -> None:
    """The number of rows does not decide which binary a row meets, so its bits cannot depend on the batch.

    The second stage of parameter gradients adds up over rows, so it alone may depend on how many there are. In a room
    of several structures the plan may choose by rows: they are then compared within each structure where the same
    kernels run, and `contract.check_structures` does the rest.
    """
    most = most_rows(room, case)
    numbers = sorted({min(n, most) for n in counts}, reverse=True)
    if broadcast(room, case):
        numbers = [n for n in numbers if n > 1]  # alone, a row lies beside what the others share as beside its own
    if not numbers:
        return

    def binaries(room: Room, n: int) -> list[tuple[Any, ...]]:
        return [binary(p, one) for p, one in launches(room, resized(room, case, n), arch) if one.kernel is not sum_rows]

    where = f"{room.name}, {case.name}, {arch.name}"
    planned = {n: binaries(room, n) for n in numbers}
    if room.structures and any(found != planned[numbers[0]] for found in planned.values()):
        for name, structure in room.structures.items():
            planned = {n: binaries(structure(room), n) for n in numbers}
            alike = {n: found for n, found in planned.items() if kernels(found) == kernels(planned[numbers[0]])}
            assert_same_binaries(alike, f"{where}, {name}")
    else:
        assert_same_binaries(planned, where)


def assert_same_binaries(planned: Mapping[int, list[tuple[Any, ...]]], where: str) -> None:
    """Launch by launch; number of rows -> binaries."""
    most, expected = next(iter(planned.items()))
    for n, found in planned.items():
        compared = f"{where}: with {n} rows and with {most}"
        assert len(found) == len(expected), f"{compared}, other launches run"
        for a, b in zip(found, expected, strict=True):
            assert a == b, f"{compared}, {a[0].__name__} is another binary: {difference(a, b)}"


def most_rows(room: Room, case: Case) -> int:
    """As many rows as fit into the memory of a GPU."""
    one = max((prod(tensor.shape) for tensor in resized(room, case, 1).inputs.values()), default=1)
    return max(1, MOST_ELEMENTS // max(one, 1))


def broadcast(room: Room, case: Case) -> bool:
    """Whether the rows share an argument that other cases have for each."""
    sizes = sizes_along(case, room.batch_axis)
    return any(size != broadcast_size(sizes) for size in sizes.values())


def kernels(binaries: list[tuple[Any, ...]]) -> list[Any]:
    """The kernels that run, in order."""
    return [one[0] for one in binaries]


def difference(a: tuple[Any, ...], b: tuple[Any, ...]) -> str:
    """Where two binaries' descriptions differ."""
    fields = ("types", "constants", "hints")
    parts = [
        f"{name} {sorted(set(getattr(a[1], name)) ^ set(getattr(b[1], name)), key=repr)}"
        for name in fields
        if getattr(a[1], name) != getattr(b[1], name)
    ]
    return "; ".join(parts) or f"{a[2:]} and {b[2:]}"


def check_same_sums(room: Room, case: Case, arch: Arch) -> None:
    """A row's sums keep their order in a view of one row of a batch, which may lie off a 16-byte boundary."""
    for program, launch in launches(room, case, arch):
        moved = {array.name: second_row(room, case, array) for array in program.inputs}
        found = reductions(build(launch, program.arrays | moved, arch))
        expected = reductions(build(launch, program.arrays, arch))
        where = f"{room.name}, {case.name}, {arch.name}: {launch.kernel.__name__}"
        assert found == expected, f"{where} sums the second row as {found}, the batch as {expected}"


def second_row(room: Room, case: Case, array: Array) -> Array:
    """The array as it lies in memory from its second row on; parameters are the same for all rows."""
    if array.name in room.arguments and batch_axis(room, case, array.name) is None:
        return array
    row = replace(array, shape=array.shape[1:])
    return replace(array, aligned=row.nbytes % ALIGNMENT == 0)


OTHERS: dict[str, tuple[Any, ...]] = {  # values of options, by kind
    "bool": (False, True),
    "float": (0.25, 0.5),
    "float[]": ((0.0, 1.0), (0.0, 2.0)),
    "SymInt?": (None, 8, 16),
    "ScalarType?": ("float32", "bfloat16", "float16"),
}


def check_honours(room: Room, case: Case, arch: Arch, without_effect: Container[str] = ()) -> int:
    """Another value of an option changes what is launched, and so does an argument that is left out.

    A kernel that ignored what its implementation says that it takes would be launched as before.

    Args:
        room: the op.
        case: the call that is varied.
        arch: where the kernels run.
        without_effect: options that change nothing in this call, or nothing that kernels do.

    Returns:
        How many variations there were.
    """
    assert room.op is not None
    base, count = launched(room, case, arch), 0
    if base is None:
        return 0
    for other, what in varied(room, case):
        if what in without_effect:
            continue
        try:
            found = launched(room, other, arch)
        except (ValueError, TypeError):
            continue  # not a call that the op takes
        count += 1
        assert found != base, f"{room.name}, {case.name}, {arch.name}: {base[0][0]} ignores {what}"
    return count


def varied(room: Room, case: Case) -> Iterator[tuple[Case, str]]:
    """The case with one option changed, or one optional argument left out."""
    assert room.op is not None
    for name, option in options(room.op.call).items():
        now = case.options.get(name, option.default)
        if option.kind == "ScalarType?" and now is None:
            now = next(iter(case.inputs.values())).dtype
        for value in option.choices or OTHERS[option.kind]:
            if value != now:
                yield replace(case, options={**case.options, name: value}), name
    for name, argument in arguments(room.op.call).items():
        if argument.optional and name in case.inputs:
            yield replace(case, inputs={n: t for n, t in case.inputs.items() if n != name}), name


def launched(room: Room, case: Case, arch: Arch) -> list[tuple[str, list[Any]]] | None:
    """What the passes launch: the implementation of each, and its launches in full; None on the portable path."""
    assert room.op is not None
    spec = spec_of(room.op, case)
    passes: tuple[Pass, ...] = ("fwd", "bwd")
    chosen = [room.op.implementation(spec, arch, which) for which in passes]
    programs = room.programs(case, arch)
    if programs is None:
        return None
    return [
        (one.name if one else "", [_told(program, launch) for launch in program.launches])
        for one, program in zip(chosen, programs, strict=True)
    ]


def _told(program: Program, launch: Launch) -> Any:
    arrays = {name: array and program.arrays[array] for name, array in launch.arrays.items()}
    return launch.kernel.__name__, launch.grid, arrays, dict(launch.scalars), repr(sorted(launch.constants.items()))
