"""What kernels of both implementations do. Symbols: README.md."""

import triton
import triton.language as tl


@triton.jit
def tile_at(number, rows, columns, GROUP: tl.constexpr):
    """The row and column of a tile: GROUP rows of tiles are walked column by column, for L2 to hold what they read."""
    in_group = GROUP * columns
    first = number // in_group * GROUP
    size = tl.minimum(rows - first, GROUP)
    return first + number % in_group % size, number % in_group // size
