"""Where in a call a program is: its row, its head of keys, its blocks, its columns of values. Symbols: ../../README.md.

The heads of queries that share a head of keys are the rows of a tile: a product has 64 in any case.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..schedule import at_step, blocks_seen

ROWS = gl.constexpr(64)  # of a tile, of which `share` are heads
PARTS = gl.constexpr(8)  # sums of exponentials of a row, see `part_sums`


class Place(NamedTuple):
    """Row and head of keys; used slots of the row; the first block that the query sees, and the end of its blocks."""

    row: Any
    group: Any
    keys: Any
    low: Any
    high: Any


@gluon.jit
def place_of(number, after_ptr, sizes, OPTIONS: gl.constexpr):
    """The place of a row's head, of all rows; `after`: the steps of each row, of which a full one has no slot."""
    WINDOW: gl.constexpr = OPTIONS.window
    row = number // sizes.groups
    keys = gl.minimum(gl.load(after_ptr + row), sizes.capacity)
    low, high = blocks_seen(0, 1, keys, WINDOW, 1, OPTIONS.keys)
    return Place(row, number % sizes.groups, keys, low, high)


@gluon.jit
def at_block(array, own, block, sizes, KEYS: gl.constexpr, column=0):
    """The coordinates of a block of keys or values in their tensor descriptor; slots that are not used are zeros."""
    return at_step(array, 0, own.row * sizes.capacity, block * KEYS, own.keys, own.group, column)


@gluon.jit
def store_result(result, total, out_ptr, own, column, sizes, VALUE_SIZE: gl.constexpr):
    """Divide the sums of values by those of exponentials, as `forward` does, and store the columns of the heads."""
    R: gl.constexpr = result.type.layout
    ROW: gl.constexpr = gl.SliceLayout(1, R)
    whole = gl.convert_layout(gl.sum(total, 1), ROW, assert_trivial=True)
    whole = gl.where(whole != 0, whole, 1.0)
    out = (result * (1.0 / whole)[:, None]).to(out_ptr.dtype.element_ty)
    head = gl.arange(0, ROWS, ROW)
    c = column + gl.arange(0, result.shape[1], gl.SliceLayout(0, R))
    first = gl.cast(own.row * sizes.groups + own.group, gl.int64) * sizes.share
    at = (first + head)[:, None] * VALUE_SIZE + c[None, :]
    gl.store(out_ptr + at, out, mask=(head < sizes.share)[:, None] & (c < VALUE_SIZE)[None, :])
