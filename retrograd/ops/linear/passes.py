"""The programs of both passes from the products that an implementation has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from retrograd.core.arch import Arch
from retrograd.core.kernels.reduce import sum_in_order_launch
from retrograd.core.program import Array, Launch, Layout, Layouts, Program, Strides, read_in_place, strides_of
from retrograd.core.rows import collapse
from retrograd.core.spec import Param

from .arrays import Matrix
from .op import Spec
from .sums import column_sums

FP32 = "float32"
SUMMED_ROWS, SUMMED_COLUMNS, SUMMED_PARTS = 32, 64, 64  # of `column_sums`: the tile of a program, and parts at most
Read = Callable[[str, Param, Layout], bool]  # whether kernels read the array of this name in place


class Operand(NamedTuple):
    """An array as an operand of a product, whose terms lie along its columns, or along its rows if transposed."""

    name: str
    transposed: bool = False


class Product(NamedTuple):
    """A product a b^T, whose result has rows and columns, and whose sums have terms."""

    a: Operand
    b: Operand
    out: str
    rows: int
    columns: int
    terms: int
    bias: str | None = None


@dataclass(frozen=True)
class Launches(ABC):
    """Builds the launches of a pass.

    Attributes:
        spec: the call.
        layouts: the layouts of the arrays that are read in place.
        arch: the architecture.
        parts: the parts in which the sums of a weight's gradient are computed.
    """

    spec: Spec
    layouts: Layouts
    arch: Arch
    parts: int

    @abstractmethod
    def rows(self, product: Product) -> Launch:
        """Computes y or dx, whose rows keep their bits in any number of rows."""

    @abstractmethod
    def weight(self, product: Product) -> Launch:
        """Computes the gradient of the weight; if in several parts, the parts (parts, N, K) in float32."""

    def forward(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> Program:
        """The program of the forward pass."""
        spec = self.spec
        bias = "bias" if spec.bias else None
        y = Product(Operand("x"), Operand("weight"), "y", spec.rows, spec.N, spec.K, bias)
        return Program(inputs, outputs, (), (self.rows(y),))

    def backward(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> Program:
        """The program of the backward pass."""
        spec = self.spec
        scratch: list[Array] = []
        launches: list[Launch] = []
        for array in outputs:
            if array.name == "dx":
                dx = Product(Operand("dy"), Operand("weight", True), "dx", spec.rows, spec.K, spec.N)
                launches.append(self.rows(dx))
                continue
            target = f"{array.name}_partial"
            if array.name == "dweight":
                parts = self.parts
                target = target if parts > 1 else array.name
                dweight = Product(Operand("dy", True), Operand("x", True), target, spec.N, spec.K, spec.rows)
                launches.append(self.weight(dweight))
            else:
                parts = min(SUMMED_PARTS, -(-spec.rows // SUMMED_ROWS))
                launches.append(self._column_sums("dy", target, parts))
            if target != array.name:
                scratch.append(Array(target, (parts, *array.shape), FP32))
                launches.append(sum_in_order_launch(target, array.name, parts, prod(array.shape), self.arch))
        return Program(inputs, outputs, tuple(scratch), tuple(launches))

    def matrix(self, operand: Operand) -> Matrix:
        """An operand's strides of rows and columns."""
        row, column = matrix_strides(self.spec, operand.name, self.layouts)
        return Matrix(None, column, row) if operand.transposed else Matrix(None, row, column)

    def _column_sums(self, name: str, out: str, parts: int) -> Launch:
        overlap = self.arch.overlaps_launches
        return Launch(
            column_sums,
            grid=-(-self.spec.N // SUMMED_COLUMNS) * parts,
            arrays={"a": name, "partial_ptr": out},
            strided={"a": self.matrix(Operand(name))},
            scalars={"rows": self.spec.rows, "columns": self.spec.N},
            constants={"TILE_ROWS": SUMMED_ROWS, "COLUMNS": SUMMED_COLUMNS, "OVERLAP": overlap},
            overlap=overlap,
        )


def inputs_of(
    spec: Spec, names: tuple[str, ...], layouts: Layouts, read: Read = lambda name, param, layout: True
) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that it reads in place; the others are copied.

    Args:
        spec: the call.
        names: the arrays.
        layouts: their layouts.
        read: whether kernels read an array whose rows lie at one stride.
    """

    def in_place(name: str, param: Param, layout: Layout) -> bool:
        if name == "bias":
            return layout.strides == (1,)
        return len(_row_strides(param.shape, layout.strides)) == 1 and read(name, param, layout)

    return read_in_place(spec.params(names), layouts, in_place)


def matrix_strides(spec: Spec, name: str, layouts: Layouts) -> tuple[int, int]:
    """The strides of the rows and of the columns of the weight, or of an array of rows."""
    param = spec[name]
    assert param is not None
    strides = strides_of(name, param.shape, layouts)
    (row,) = _row_strides(param.shape, strides)
    return row, strides[-1]


def _row_strides(shape: tuple[int, ...], strides: Strides) -> Strides:
    """The strides of rows, those that one stride addresses merged; a vector is one row."""
    _, (merged,) = collapse(shape[:-1] or (1,), [strides[:-1] or shape[-1:]])
    return merged
