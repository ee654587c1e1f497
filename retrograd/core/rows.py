"""Strides of rows: merges dimensions so that few strides address every row, and strided arrays need no copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .program import Layouts, Strides, dense, strides_of
from .spec import Param


class Row(NamedTuple):
    """A step's array (batch, heads or groups, columns) of dense columns, or one without columns, as kernels take it."""

    pointer: Any
    batch: Any
    head: Any


def row_of(name: str, param: Param | None, layouts: Layouts) -> Row:
    """The strides of a step's array; zeros for an absent one."""
    return Row(None, 0, 0) if param is None else Row(None, *strides_of(name, param.shape, layouts)[:2])


def is_dense(shape: Sequence[int], strides: Strides) -> bool:
    """Whether the strides are those of a dense array; strides of dimensions of size 1 are ignored."""
    return all(size == 1 or a == b for size, a, b in zip(shape, strides, dense(shape), strict=True))


def collapse(shape: Sequence[int], strides: Sequence[Strides]) -> tuple[tuple[int, ...], list[Strides]]:
    """Merge neighbouring dimensions where, in every array, one stride addresses both.

    Args:
        shape: dimensions that the arrays share, outermost first.
        strides: for each array, one stride per dimension.

    Returns:
        The merged shape, and each array's strides for it. Dimensions of size 1 are dropped; if all are of size 1, the
        last is kept with its strides.

    Example:
        >>> collapse((2, 3, 5), [(15, 5, 1), (0, 5, 1)])
        ((2, 15), [(15, 1), (0, 1)])
    """
    merged: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if merged and all(kept[i][-1] == s[axis] * size for i, s in enumerate(strides)):
            merged[-1] *= size
            for i, s in enumerate(strides):
                kept[i][-1] = s[axis]
        else:
            merged.append(size)
            for i, s in enumerate(strides):
                kept[i].append(s[axis])
    if not merged:
        return (1,), [tuple(s[-1:]) or (0,) for s in strides]
    return tuple(merged), [tuple(s) for s in kept]
