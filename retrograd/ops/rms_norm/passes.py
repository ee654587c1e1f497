"""What the implementations share: which arrays a pass reads where they lie, and what kernels call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retrograd.core.arrays import pointers_to, read_in_place
from retrograd.core.program import Array, Scalar
from retrograd.core.rows import Layout, Layouts, is_dense
from retrograd.core.spec import Param

from .op import Spec

Read = Callable[[tuple[int, ...], Layout], bool]  # whether kernels read an array of a shape where it lies


def inputs_of(spec: Spec, names: Sequence[str], layouts: Layouts, read: Read) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that it reads where they lie; the others are copied."""

    def in_place(name: str, param: Param, layout: Layout) -> bool:
        return (in_one_piece if name == "rstd" else read)(param.shape, layout)

    return read_in_place(spec.params(names), layouts, in_place)


def in_one_piece(shape: tuple[int, ...], layout: Layout) -> bool:
    """Rows that lie one after the other, from a 16-byte boundary."""
    return layout.aligned and is_dense(shape, layout.strides)


def backward_pointers(spec: Spec, arrays: tuple[Array, ...], names: str) -> dict[str, str | None]:
    """As `pointers_to`, for the kernels of the backward pass, which call what is normalised s."""
    return pointers_to(arrays, **{f"{name}_ptr": spec.normalised if name == "s" else name for name in names.split()})


def offset(spec: Spec) -> dict[str, Scalar]:
    """As kernels take it."""
    return {"weight_offset": float(spec.weight_offset)}
