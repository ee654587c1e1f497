"""A kernel whose arrays are named tuples of a pointer and strides, one of them optional; another takes all as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import triton
import triton.language as tl

from retrograd.core.program import Array, Launch, Part, Program, layouts_of

ROWS, COLUMNS = 5, 24


class Rows(NamedTuple):
    pointer: Any
    row: Any
    column: Any


class Arrays(NamedTuple):
    a: Any
    b: Any
    out: Any


@triton.jit
def load(array, row, column, mask):
    return tl.load(array.pointer + row[:, None] * array.row + column[None, :] * array.column, mask=mask)


@triton.jit
def total(a, b, out, rows, columns, BLOCK: tl.constexpr):
    """out = a + b; a alone without b."""
    row, column = tl.program_id(0) * 4 + tl.arange(0, 4), tl.arange(0, BLOCK)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    sums = load(a, row, column, mask)
    if b.pointer is not None:
        sums += load(b, row, column, mask)
    tl.store(out.pointer + row[:, None] * out.row + column[None, :] * out.column, sums, mask=mask)


@triton.jit
def total_of(arrays, rows, columns, BLOCK: tl.constexpr):
    total(arrays.a, arrays.b, arrays.out, rows, columns, BLOCK)


def program(a: tuple[int, int], b: tuple[int, int] | None) -> Program:
    """a + b, with these strides."""
    arrays = {name: Array(name, (ROWS, COLUMNS), "float32") for name in ("a", "b", "out")}
    launch = Launch(
        total,
        grid=-(-ROWS // 4),
        arrays={"a": "a", "b": "b" if b else None, "out": "out"},
        strided={"a": Rows(None, *a), "b": Rows(None, *(b or (0, 0))), "out": Rows(None, COLUMNS, 1)},
        scalars={"rows": ROWS, "columns": COLUMNS},
        constants={"BLOCK": 32},
    )
    inputs = (arrays["a"], arrays["b"]) if b else (arrays["a"],)
    return Program(inputs, (arrays["out"],), (), (launch,))


def together(made: Program) -> Program:
    """The program with all arrays of a launch in one tuple."""
    launches = (replace(launch, kernel=total_of, together={"arrays": Arrays}) for launch in made.launches)
    return replace(made, launches=tuple(launches))


def side_by_side() -> Program:
    """a + b and a, which lie in one array `both`, (ROWS, 2, COLUMNS)."""
    a, b, total_, copy = (Array(name, (ROWS, COLUMNS), "float32") for name in ("a", "b", "total", "copy"))
    outputs = tuple(array.within(Part("both", 1, place, 2)) for place, array in enumerate((total_, copy)))
    launches = tuple(
        replace(
            launch,
            arrays={**launch.arrays, "out": output.name},
            strided={**launch.strided, "out": Rows(None, *layouts_of(outputs)[output.name].strides)},
        )
        for output, strides in zip(outputs, ((COLUMNS, 1), None), strict=True)
        for launch in program((COLUMNS, 1), strides).launches
    )
    return Program((a, b), outputs, (), launches)
