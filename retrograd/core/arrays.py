"""From the arrays of a call to those of a program, and to what its launches say of them."""

from __future__ import annotations

from collections.abc import Iterable

from .op import Layouts, Param
from .program import Array
from .rows import Strides, dense


def arrays_of(layouts: Layouts, /, **params: Param | None) -> tuple[Array, ...]:
    """The arrays that are there, by name."""
    return tuple(
        Array(name, param.shape, param.dtype, layouts[name].aligned if name in layouts else True)
        for name, param in params.items()
        if param is not None
    )


def pointers_to(arrays: Iterable[Array], names: str = "", **others: str | None) -> dict[str, str | None]:
    """Pointer parameter -> array, None where it is not there.

    Args:
        arrays: those that are there.
        names: of the arrays whose parameter is `<name>_ptr`.
        others: parameter -> array, or None.
    """
    there = {array.name for array in arrays}
    wanted = {f"{name}_ptr": name for name in names.split()} | others
    return {parameter: name if name in there else None for parameter, name in wanted.items()}


def strides_of(name: str, shape: tuple[int, ...], layouts: Layouts) -> Strides:
    """An array's strides, in elements."""
    return layouts[name].strides if name in layouts else dense(shape)
