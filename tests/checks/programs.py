"""What every program promises; checked without a GPU and without running the program."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from inspect import getsource
from math import prod
from typing import Any

from retrograd.core.arch import Arch
from retrograd.core.build import ALIGNMENT, build, signature
from retrograd.core.kernels.reduce import sum_rows
from retrograd.core.program import Array, Launch, Program
from retrograd.core.spec import Pass, arguments, options
from retrograd.opinfo.cases import Case, other_values
from retrograd.opinfo.info import OpInfo, spec_of

from .parts import PACKED, batch_axis, broadcast_size, is_packed, sequence_axis, sizes_along
from .resources import reductions

MOST_ELEMENTS = 2**35  # of an array: 64 GiB at two bytes each


def launches(info: OpInfo, case: Case, arch: Arch) -> Iterator[tuple[Program, Launch]]:
    """Every launch of a case's passes with a grid that is not empty; none on the portable path."""
    for program in info.programs(case, arch) or ():
        for launch in program.launches:
            if launch.grid:
                yield program, launch


def binary(program: Program, launch: Launch) -> tuple[Any, ...]:
    """Everything that determines which binary a launch runs."""
    return (
        launch.kernel,
        signature(launch, program.arrays),
        launch.num_warps,
        launch.num_stages,
        getattr(launch, "overlap", False),
    )


def check_first_kernels(info: OpInfo, case: Case, arch: Arch) -> None:
    """A program's first kernel, which may start before the end of the kernel before it, makes no tensor descriptors.

    Kernels make theirs before they wait, in memory that an earlier call may have had, and its kernels still use.
    """
    for program in info.programs(case, arch) or ():
        for launch in program.launches[:1]:
            where = f"{info.name}, {case.name}, {arch.name}: {launch.kernel.__name__}"
            assert not launch.overlap or "make_tensor_descriptor" not in getsource(launch.kernel.fn), where


def check_order(info: OpInfo, case: Case, arch: Arch) -> None:
    """Kernel parameters begin with the arrays, those read before those written; one launch has each output.

    PyTorch's launcher fills in addresses in this order, and XLA's distinguishes inputs from outputs by it.
    """
    for program in info.programs(case, arch) or ():
        written = {array.name for array in program.inputs}
        outputs = {array.name for array in program.outputs}
        for launch in program.launches:
            if not launch.grid:
                continue
            where = f"{info.name}, {case.name}, {arch.name}: {launch.kernel.__name__}"
            first = launch.pointers
            assert first == list(launch.arrays), f"{where} does not take its arrays first: {first}"
            twice = sorted(outputs & written & set(launch.arrays.values()) - launch.reads)
            assert not twice, f"{where} is given {twice}, which an earlier launch has written"
            described = {launch.arrays[name] for name in launch.descriptors}
            zeroed = {array.name for array in (*program.outputs, *program.scratch) if array.zeroed}
            cleared = sorted(zeroed & described)
            assert not cleared, f"{where}: XLA's launcher does not zero {cleared}, which are behind descriptors"
            try:
                _, writes = program.reads_and_writes(launch, written)
            except ValueError as error:
                raise AssertionError(f"{info.name}, {case.name}, {arch.name}: {error}") from error
            assert writes, f"{where} writes nothing"
            written.update(writes)
        missing = [array.name for array in program.outputs if array.nbytes and array.name not in written]
        assert not missing, f"{info.name}, {case.name}, {arch.name}: nothing writes {missing}"


def resized(info: OpInfo, case: Case, rows: int) -> Case:
    """The case with another number of rows along its batch axis, or of packed sequences."""
    axis_of = sequence_axis if is_packed(case) else batch_axis

    def shape(name: str, old: tuple[int, ...]) -> tuple[int, ...]:
        if name.startswith(PACKED):
            return (rows + 1,)
        axis = axis_of(info, case, name)
        return old if axis is None else (*old[:axis], rows, *old[axis + 1 :])

    inputs = {
        name: replace(tensor, shape=shape(name, tensor.shape), values=None) for name, tensor in case.inputs.items()
    }
    return replace(case, inputs=inputs)


def check_same_binaries(info: OpInfo, case: Case, arch: Arch, *counts: int) -> None:
    """A row is computed by the same binary for any number of rows, so its bits cannot depend on the batch size.

    The second stage of parameter gradients sums over rows, so it alone may depend on their number. In a info with
    several structures, the plan may choose one by the number of rows: then binaries are compared within each structure
    for numbers of rows that run the same kernels, and `contract.check_structures` compares the structures.
    """
    most = most_rows(info, case)
    numbers = sorted({min(n, most) for n in counts}, reverse=True)
    if broadcast(info, case):
        numbers = [n for n in numbers if n > 1]  # one row has the same shapes with shared arguments as with its own
    if not numbers:
        return

    def binaries(info: OpInfo, n: int) -> list[tuple[Any, ...]]:
        return [binary(p, one) for p, one in launches(info, resized(info, case, n), arch) if one.kernel is not sum_rows]

    where = f"{info.name}, {case.name}, {arch.name}"
    planned = {n: binaries(info, n) for n in numbers}
    if info.structures and any(found != planned[numbers[0]] for found in planned.values()):
        for name, structure in info.structures.items():
            planned = {n: binaries(structure(info), n) for n in numbers}
            alike = {n: found for n, found in planned.items() if kernels(found) == kernels(planned[numbers[0]])}
            assert_same_binaries(alike, f"{where}, {name}")
    else:
        assert_same_binaries(planned, where)


def assert_same_binaries(planned: Mapping[int, list[tuple[Any, ...]]], where: str) -> None:
    """Assert that all binaries are equal, launch by launch; `planned` maps numbers of rows to binaries."""
    most, expected = next(iter(planned.items()))
    for n, found in planned.items():
        compared = f"{where}: with {n} rows and with {most}"
        assert len(found) == len(expected), f"{compared}, other launches run"
        for a, b in zip(found, expected, strict=True):
            assert a == b, f"{compared}, {a[0].__name__} is another binary: {difference(a, b)}"


def most_rows(info: OpInfo, case: Case) -> int:
    """The number of rows whose largest array fits into the memory of a GPU."""
    one = max((prod(tensor.shape) for tensor in resized(info, case, 1).inputs.values()), default=1)
    return max(1, MOST_ELEMENTS // max(one, 1))


def broadcast(info: OpInfo, case: Case) -> bool:
    """Whether the rows share an argument that has a batch axis in other cases."""
    sizes = sizes_along(case, info.batch_axis)
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


def check_same_sums(info: OpInfo, case: Case, arch: Arch) -> None:
    """A row is summed in the same order in a view of one row of a batch, which may not be aligned to 16 bytes."""
    for program, launch in launches(info, case, arch):
        moved = program.arrays | {array.name: second_row(info, case, array) for array in program.inputs}
        if signature(launch, moved) == signature(launch, program.arrays):
            continue  # the same binary runs
        found = reductions(build(launch, moved, arch))
        expected = reductions(build(launch, program.arrays, arch))
        where = f"{info.name}, {case.name}, {arch.name}: {launch.kernel.__name__}"
        assert found == expected, f"{where} sums the second row as {found}, the batch as {expected}"


def second_row(info: OpInfo, case: Case, array: Array) -> Array:
    """The second row of the array with its alignment; parameters are returned unchanged."""
    if array.name in info.arguments and batch_axis(info, case, array.name) is None:
        return array
    row = replace(array, shape=array.shape[1:])
    return replace(array, aligned=row.nbytes % ALIGNMENT == 0)


def check_honours(info: OpInfo, case: Case, arch: Arch, without_effect: Container[str] = ()) -> int:
    """Changing an option changes the launches, and so does omitting an optional argument.

    If the launches stay the same, the kernel ignores an option or argument that its implementation claims to take.

    Args:
        info: the op.
        case: the call that is varied.
        arch: the architecture for which kernels are planned.
        without_effect: options and arguments that do not affect the launches of this call.

    Returns:
        The number of variations checked.
    """
    assert info.op is not None
    base, count = launched(info, case, arch), 0
    if base is None:
        return 0
    for other, what in varied(info, case):
        if what in without_effect:
            continue
        try:
            found = launched(info, other, arch)
        except (ValueError, TypeError):
            continue  # not a call that the op takes
        count += 1
        assert found != base, f"{info.name}, {case.name}, {arch.name}: {base[0][0]} ignores {what}"
    return count


def varied(info: OpInfo, case: Case) -> Iterator[tuple[Case, str]]:
    """The case with one option changed, or one optional argument omitted."""
    assert info.op is not None
    for name, option in options(info.op.call).items():
        now = case.options.get(name, option.default)
        if option.kind == "ScalarType?" and now is None:
            now = next(iter(case.inputs.values())).dtype
        for value in other_values(option, now):
            yield replace(case, options={**case.options, name: value}), name
    for name, argument in arguments(info.op.call).items():
        if argument.optional and name in case.inputs:
            yield replace(case, inputs={n: t for n, t in case.inputs.items() if n != name}), name


def launched(info: OpInfo, case: Case, arch: Arch) -> list[tuple[str, list[Any]]] | None:
    """The name of each pass's implementation and its launches in full; None on the portable path."""
    assert info.op is not None
    spec = spec_of(info.op, case)
    passes: tuple[Pass, ...] = ("fwd", "bwd")
    chosen = [info.op.implementation(spec, arch, which) for which in passes]
    programs = info.programs(case, arch)
    if programs is None:
        return None
    return [
        (one.name if one else "", [_described(program, launch) for launch in program.launches])
        for one, program in zip(chosen, programs, strict=True)
    ]


def _described(program: Program, launch: Launch) -> Any:
    arrays = {name: array and program.arrays[array] for name, array in launch.arrays.items()}
    return launch.kernel.__name__, launch.grid, arrays, dict(launch.scalars), repr(sorted(launch.constants.items()))
