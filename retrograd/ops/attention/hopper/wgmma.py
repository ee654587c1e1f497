"""Buffers of blocks, and products over the columns of heads, in the Hopper kernels of attention."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

WARPS = gl.constexpr(4)  # of a group
SUMS_OF_ROW = gl.constexpr(32)  # fp32 elements in 128 bytes


class Panels(NamedTuple):
    """Blocks in three panels of columns."""

    first: Any
    second: Any
    third: Any


@gluon.constexpr_function
def shape_of_blocks(array, number):
    """The shape of this many blocks of an array with a tensor descriptor."""
    return [number, *array.block_shape]


@gluon.jit
def allocate(array, NUMBER: gl.constexpr):
    """Shared memory for this many blocks of an array with a tensor descriptor."""
    return gl.allocate_shared_memory(array.dtype, shape_of_blocks(array, NUMBER), array.layout)


@gluon.jit
def allocate_panels(array, NUMBER: gl.constexpr, PANELS: gl.constexpr):
    """Shared memory for this many blocks in 1 or 3 panels of columns, which a descriptor copies one by one.

    Shapes are powers of two: a block of 192 columns in one piece would take the memory of 256.
    """
    if PANELS == 1:
        return allocate(array, NUMBER)
    else:
        return Panels(allocate(array, NUMBER), allocate(array, NUMBER), allocate(array, NUMBER))


@gluon.jit
def matrix(block):
    """A block in shared memory as (steps, columns)."""
    return block.reshape([block.shape[len(block.shape) - 3], block.shape[len(block.shape) - 1]])


@gluon.jit
def panels_of(blocks, stage, PANELS: gl.constexpr):
    """A block as (steps, columns), or its panels."""
    if PANELS == 1:
        return matrix(blocks.index(stage))
    else:
        first, second, third = blocks
        return Panels(matrix(first.index(stage)), matrix(second.index(stage)), matrix(third.index(stage)))


@gluon.constexpr_function
def first_columns(size):
    """How many columns the first product takes: shapes are powers of two, so 128 of 192 and 64 of 80 or 96."""
    return 1 << (size.bit_length() - 1)


@gluon.constexpr_function
def more_columns(size):
    """How many columns a second product takes, or 0."""
    return size - first_columns(size)


@gluon.constexpr_function
def pieces(size):
    """The number of products."""
    return 1 if more_columns(size) == 0 else 2


@gluon.constexpr_function
def of_products(columns):
    """The layout of a result of products of so many columns."""
    return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, columns, 16])


@gluon.jit
def halves(x):
    """The columns of a result of products as two results of products."""
    HALF: gl.constexpr = x.shape[1] // 2
    OF_HALF: gl.constexpr = of_products(HALF)
    left, right = x.reshape([x.shape[0], 2, HALF]).permute(0, 2, 1).split()
    return gl.convert_layout(left, OF_HALF, assert_trivial=True), gl.convert_layout(right, OF_HALF, assert_trivial=True)


@gluon.jit
def in_order_of_sums(x):
    """fp32 results of products, their columns in an order that is stored to shared memory without bank conflicts.

    One store of a warp has, in each of 8 rows, two columns of each of four threads: of every 32 columns 8 j + 2 q and
    the one after, q = 0 to 3. The 16-byte units of a row change places from row to row, by their number xor the row's.
    In order of q // 2, j, q % 2, the units of four rows are on different banks. `round_dq` restores the order of dq,
    `from_order_of_sums` that of p in `backward_apart`.
    """
    ROWS: gl.constexpr = x.shape[0]
    COLUMNS: gl.constexpr = x.shape[1]
    return x.reshape([ROWS, COLUMNS // SUMS_OF_ROW, 4, 2, 4]).permute(0, 1, 3, 2, 4).reshape([ROWS, COLUMNS])


@gluon.jit
def from_order_of_sums(x):
    """The results of products that `in_order_of_sums` has put in that order."""
    ROWS: gl.constexpr = x.shape[0]
    COLUMNS: gl.constexpr = x.shape[1]
    OF_COLUMNS: gl.constexpr = of_products(COLUMNS)
    x = x.reshape([ROWS, COLUMNS // SUMS_OF_ROW, 2, 4, 4]).permute(0, 1, 3, 2, 4).reshape([ROWS, COLUMNS])
    return gl.convert_layout(x, OF_COLUMNS, assert_trivial=True)


@gluon.jit
def no_sums(ROWS: gl.constexpr, SIZE: gl.constexpr):
    """Zeros that `add_products` adds to: total, and rest, whose columns nothing reads if there is no second product."""
    LESS: gl.constexpr = first_columns(SIZE)
    MORE: gl.constexpr = more_columns(SIZE) or 64
    total = gl.zeros([ROWS, LESS], gl.float32, of_products(LESS))
    return total, gl.zeros([ROWS, MORE], gl.float32, of_products(MORE))


@gluon.jit
def add_left(left, right, total):
    """Start left @ right, added to total; left is in the layout of a result of products."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, of_products(right.shape[1]), 2)
    return warpgroup_mma(gl.convert_layout(left, LEFT, assert_trivial=True), right, total, is_async=True)


@gluon.jit
def add_products(a, b, total, rest, SIZE: gl.constexpr):
    """Start a @ b over the first SIZE columns of b: the first product is added to total, the second, if any, to rest.

    a: in the layout of a result of products.
    """
    LESS: gl.constexpr = first_columns(SIZE)
    MORE: gl.constexpr = more_columns(SIZE)
    total = add_left(a, b.slice(0, LESS, dim=1), total)
    if MORE > 0:
        rest = add_left(a, b.slice(LESS, MORE, dim=1), rest)
    return total, rest


@gluon.jit
def wait_for_sums(total, rest, SIZE: gl.constexpr, AFTER: gl.constexpr = 0):
    """The sums once all products are added but the last ones, so many, which came after."""
    if more_columns(SIZE) > 0:
        total, rest = warpgroup_mma_wait(AFTER, deps=[total, rest])
    else:
        total = warpgroup_mma_wait(AFTER, deps=[total])
    return total, rest


@gluon.jit
def store_sums(total, rest, SIZE: gl.constexpr, FACTOR: gl.constexpr, to):
    """Round sums, times a factor, to a block in shared memory."""
    LESS: gl.constexpr = first_columns(SIZE)
    MORE: gl.constexpr = more_columns(SIZE)
    to.slice(0, LESS, dim=1).store((total * FACTOR).to(to.dtype))
    if MORE > 0:
        to.slice(LESS, MORE, dim=1).store((rest * FACTOR).to(to.dtype))


@gluon.jit
def over_columns(a, b, none, SIZE: gl.constexpr):
    """Start a @ b.T over the first SIZE columns."""
    LESS: gl.constexpr = first_columns(SIZE)
    MORE: gl.constexpr = more_columns(SIZE)
    if MORE == 0:
        return warpgroup_mma(a, b.permute((1, 0)), none, use_acc=False, is_async=True)
    else:
        left, right = a.slice(0, LESS, dim=1), b.slice(0, LESS, dim=1)
        sums = warpgroup_mma(left, right.permute((1, 0)), none, use_acc=False, is_async=True)
        left, right = a.slice(LESS, MORE, dim=1), b.slice(LESS, MORE, dim=1)
        return warpgroup_mma(left, right.permute((1, 0)), sums, is_async=True)


@gluon.jit
def over_panels(a, b, none, SIZE: gl.constexpr, PANELS: gl.constexpr):
    """Start a @ b.T over the first SIZE columns of blocks, or over all panels."""
    if PANELS == 1:
        return over_columns(a, b, none, SIZE)
    else:
        sums = over_columns(a.first, b.first, none, SIZE // PANELS)
        sums = warpgroup_mma(a.second, b.second.permute((1, 0)), sums, is_async=True)
        return warpgroup_mma(a.third, b.third.permute((1, 0)), sums, is_async=True)
