"""Of a product (64, 64) that a warpgroup holds: parts, sums, the diagonal. Symbols: ../README.md."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from retrograd.core.kernels.numerics import forget
from retrograd.core.kernels.warpgroups import rounded

from .blocks import Q


class Distances(NamedTuple):
    """Of the elements of a product, row - column, in two parts to be subtracted: what threads differ in, and the rest.

    Apart, since the first takes one register, and few comparisons of it with the second differ.
    """

    thread: Any
    rest: Any


@gluon.jit
def part_sums(x):
    """(64, 64) -> (64, 8): sums over the columns of a product that one thread holds."""
    return gl.sum(gl.reshape(x, [x.shape[0], x.shape[1] // 8, 8]), 1)


@gluon.jit
def near_diagonal(x):
    """(64, 64) -> (4, 8, 4, 8, 2): one half of a product, with the diagonal; a thread has the other half too."""
    x = gl.permute(gl.reshape(x, [4, 2, 8, 4, 2, 8]), (0, 2, 3, 5, 1, 4))
    even, odd = gl.split(x)
    upper, _ = gl.split(even)
    _, lower = gl.split(odd)
    return gl.join(upper, lower)


@gluon.constexpr_function
def along(layout, dim):
    """Of a layout of six dimensions, one."""
    for other in reversed(range(6)):
        layout = layout if other == dim else gl.SliceLayout(other, layout)
    return layout


@gluon.jit
def distances_of(LAYOUT: gl.constexpr):
    """The distances of a product (64, 64) in LAYOUT."""
    LIKE: gl.constexpr = gl.reshape(gl.zeros([Q, Q], gl.int32, LAYOUT), [4, 2, 8, Q // 8, 4, 2]).type.layout
    warp = gl.arange(0, 4, along(LIKE, 0))[:, None, None, None, None, None]
    half = gl.arange(0, 2, along(LIKE, 1))[None, :, None, None, None, None]
    row = gl.arange(0, 8, along(LIKE, 2))[None, None, :, None, None, None]
    eight = gl.arange(0, Q // 8, along(LIKE, 3))[None, None, None, :, None, None]
    pair = gl.arange(0, 4, along(LIKE, 4))[None, None, None, None, :, None]
    one = gl.arange(0, 2, along(LIKE, 5))[None, None, None, None, None, :]
    return Distances(forget(16 * warp + row - 2 * pair), 8 * (eight - half) + one)


@gluon.jit
def diagonal(x, distances):
    """The diagonal of a product (64, 64)."""
    near = gl.where(near_diagonal(gl.reshape(distances.thread == distances.rest, [Q, Q])), near_diagonal(x), 0.0)
    return gl.reshape(gl.permute(gl.sum(gl.sum(near, 2), 2), (0, 2, 1)), [Q])


@gluon.jit
def where(condition, x, other: gl.constexpr):
    """x (64, 64) where a condition on `distances_of` holds."""
    return gl.where(gl.convert_layout(gl.reshape(condition, [Q, Q]), x.type.layout, assert_trivial=True), x, other)


@gluon.jit
def add_product(acc, z, right, LAYOUT: gl.constexpr):
    """acc + z right, with z in two terms of 16 bits."""
    high = rounded(z, right.dtype)
    low = rounded(z - high.to(gl.float32), right.dtype)
    acc = warpgroup_mma(gl.convert_layout(high, LAYOUT, assert_trivial=True), right, acc, is_async=True)
    acc = warpgroup_mma(gl.convert_layout(low, LAYOUT, assert_trivial=True), right, acc, is_async=True)
    return warpgroup_mma_wait(0, deps=[acc])
