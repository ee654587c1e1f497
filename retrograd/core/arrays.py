"""Builds the arrays of a program, and the pointers and strides of its launches, from the arrays of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from .program import Array
from .rows import Layout, Layouts, Strides, dense
from .spec import Param


def arrays_of(layouts: Layouts, /, **params: Param | None) -> tuple[Array, ...]:
    """The present arrays; each keyword is an array's name."""
    return tuple(
        Array(name, param.shape, param.dtype, layouts[name].aligned if name in layouts else True)
        for name, param in params.items()
        if param is not None
    )


def read_in_place(
    params: Mapping[str, Param], layouts: Layouts, in_place: Callable[[str, Param, Layout], bool]
) -> tuple[tuple[Array, ...], Layouts]:
    """The arrays that a pass reads, and the layouts of those that its kernels read without a copy.

    The launcher first copies each of the others that may not be dense into dense memory.

    Args:
        params: shapes and dtypes by name.
        layouts: layouts of the arrays that may not be dense.
        in_place: returns whether the kernels read an array of this name, shape and dtype in this layout.
    """
    kept = {
        name: layouts[name]
        for name, param in params.items()
        if name in layouts and in_place(name, param, layouts[name])
    }
    arrays = arrays_of(kept, **params)
    return tuple(replace(a, copied=a.name in layouts and a.name not in kept) for a in arrays), kept


def pointers_to(arrays: Iterable[Array], names: str = "", **others: str | None) -> dict[str, str | None]:
    """Pointer parameter -> array name, None where the array is absent.

    Args:
        arrays: the present arrays.
        names: names of arrays whose parameter is `<name>_ptr`, separated by spaces.
        others: parameter -> array name, or None.
    """
    present = {array.name for array in arrays}
    wanted = {f"{name}_ptr": name for name in names.split()} | others
    return {parameter: name if name in present else None for parameter, name in wanted.items()}


def strides_of(name: str, shape: tuple[int, ...], layouts: Layouts) -> Strides:
    """An array's strides, in elements; those of a dense array where no layout is passed for it."""
    return layouts[name].strides if name in layouts else dense(shape)
