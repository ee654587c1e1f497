"""Shared by the implementations: which arrays a pass reads in place, and their names in the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retrograd.core.program import Array, Layout, Layouts, pointers_to, read_in_place
from retrograd.core.rows import is_dense
from retrograd.core.spec import Param

from .op import Spec

Read = Callable[[tuple[int, ...], Layout], bool]  # whether kernels read an array of this shape in place


def inputs_of(spec: Spec, names: Sequence[str], layouts: Layouts, read: Read) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that it reads in place; the others are copied."""

    def in_place(name: str, param: Param, layout: Layout) -> bool:
        return (in_one_piece if name == "rstd" else read)(param.shape, layout)

    return read_in_place(spec.params(names), layouts, in_place)


def in_one_piece(shape: tuple[int, ...], layout: Layout) -> bool:
    """Whether an array is dense and aligned to 16 bytes."""
    return layout.aligned and is_dense(shape, layout.strides)


def backward_pointers(spec: Spec, arrays: tuple[Array, ...], names: str) -> dict[str, str | None]:
    """As `pointers_to`, for the backward kernels, in which the normalised array is named s."""
    return pointers_to(arrays, **{f"{name}_ptr": spec.normalised if name == "s" else name for name in names.split()})
