"""One query of each sequence over a long cache, 3 of 3: the sums over blocks, in turn. Symbols: ../../README.md.

A program has some columns of the values of a row's head of keys, and walks over its blocks from the last to the first.
Its warps are of two kinds:
    fetch  one warp, the producer: copies values, and what `exponentials` has of their block, by TMA
    add    one group, the consumer: the sums of `add_block`
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import tma_load
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, acquire, full_and_empty, release, stage_of, wait_full

from ..softmax import add_parts, part_sums
from ..wgmma import allocate, matrix, of_products
from .place import ROWS, at_block, place_of, store_result

FETCH_REGISTERS = gl.constexpr(24)


class Blocks(NamedTuple):
    """Of a block: exponentials, the factor of the sums before it, sums of exponentials, values."""

    p: Any
    before: Any
    parts: Any
    v: Any


@gluon.constexpr_function
def left_of(tile, rows, keys):
    """The layout of a left operand, a tile of rows that come tile / rows times, as (tile / rows, rows, keys)."""

    def at(row, key):
        return [row // rows, row % rows, key]

    registers = [at(0, 1), at(8, 0), at(0, 8), *(at(0, 16 << i) for i in range((keys // 16).bit_length() - 1))]
    lanes = [at(0, 2), at(0, 4), at(1, 0), at(2, 0), at(4, 0)]
    return gl.DistributedLinearLayout(registers, lanes, [at(16, 0), at(32, 0)], [], [tile // rows, rows, keys])


@gluon.jit
def load(ring, n, OPTIONS: gl.constexpr, R: gl.constexpr):
    """The exponentials of block n, as the left operand of a product, and the factor of the sums before it.

    Shared memory has few more rows than there are heads: those come again and again in the tile of a product.
    """
    stage = stage_of(n, OPTIONS.stages)
    wait_full(ring, n)
    block = matrix(ring.blocks.p.index(stage))
    HEADS: gl.constexpr = block.shape[0]
    KEYS: gl.constexpr = block.shape[1]
    SPREAD: gl.constexpr = left_of(ROWS, HEADS, KEYS)
    p = block.reshape([1, HEADS, KEYS]).load(SPREAD)
    p, _ = gl.broadcast(p, gl.zeros([ROWS // HEADS, HEADS, KEYS], block.dtype, SPREAD))
    p = gl.convert_layout(gl.reshape(p, [ROWS, KEYS]), gl.DotOperandLayout(0, R, 2), assert_trivial=True)
    return p, ring.blocks.before.index(stage).reshape([ROWS]).load(gl.SliceLayout(1, R))


@gluon.jit
def fetch(arrays, ring, number, own, column, sizes, OPTIONS: gl.constexpr):
    """The producer: copies blocks from the last to the first."""
    p, before, parts, v = arrays
    for n in range(own.high - own.low):
        block = own.high - 1 - n
        at = number * sizes.blocks + block
        stage = acquire(ring, n)
        full = ring.full.index(stage)
        bytes_of_p: gl.constexpr = p.block_type.nbytes + before.block_type.nbytes + parts.block_type.nbytes
        mbarrier.expect(full, bytes_of_p + v.block_type.nbytes)
        tma_load(v, at_block(v, own, block, sizes, OPTIONS.keys, column), full, ring.blocks.v.index(stage))
        tma_load(p, [at, 0, 0, 0], full, ring.blocks.p.index(stage))
        tma_load(before, [at, 0], full, ring.blocks.before.index(stage))
        tma_load(parts, [at, 0, 0, 0], full, ring.blocks.parts.index(stage))


@gluon.jit
def add(out_ptr, ring, own, column, sizes, OPTIONS: gl.constexpr):
    """The consumer: sums of values and of exponentials, and the result."""
    KEYS: gl.constexpr = OPTIONS.keys
    COLUMNS: gl.constexpr = ring.blocks.v.shape[len(ring.blocks.v.shape) - 1]
    S: gl.constexpr = of_products(KEYS)
    R: gl.constexpr = of_products(COLUMNS)
    total = part_sums(gl.zeros([ROWS, KEYS], gl.float32, S))  # zeros in the layout of `forward`
    T: gl.constexpr = total.type.layout
    result = gl.zeros([ROWS, COLUMNS], gl.float32, R)
    count = own.high - own.low
    p, before = load(ring, 0, OPTIONS, R)
    for n in range(count):
        stage = stage_of(n, OPTIONS.stages)
        result = result * before[:, None]
        result = warpgroup_mma(p, matrix(ring.blocks.v.index(stage)), result, is_async=True)
        before = gl.convert_layout(before, gl.SliceLayout(1, T), assert_trivial=True)
        total = add_parts(total, before, matrix(ring.blocks.parts.index(stage)).load(T))
        p, before = load(ring, gl.minimum(n + 1, count - 1), OPTIONS, R)
        result, total = warpgroup_mma_wait(0, deps=[result, total])  # so all that was read of block n has been used
        release(ring, n)
    store_result(result, total, out_ptr, own, column, sizes, OPTIONS.value_size)


@gluon.jit(do_not_specialize=["sizes"])
def sum_values(p, before, parts, v, after_ptr, out_ptr, sizes, OPTIONS: gl.constexpr, OVERLAP: gl.constexpr):
    """p, before, parts: of `exponentials`. All but after and out are tensor descriptors."""
    STAGES: gl.constexpr = OPTIONS.stages
    p_blocks = allocate(p, STAGES)
    before_blocks = allocate(before, STAGES)
    parts_blocks = allocate(parts, STAGES)
    v_blocks = allocate(v, STAGES)
    COLUMNS: gl.constexpr = v_blocks.shape[len(v_blocks.shape) - 1]
    full, empty = full_and_empty(STAGES, 1)
    ring = Ring(Blocks(p_blocks, before_blocks, parts_blocks, v_blocks), full, empty)
    fence_async_shared()
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    number = gl.program_id(0) // sizes.slices
    own = place_of(number, after_ptr, sizes, OPTIONS)
    column = gl.program_id(0) % sizes.slices * COLUMNS
    gl.warp_specialize(
        [
            (add, (out_ptr, ring, own, column, sizes, OPTIONS)),
            (fetch, (Blocks(p, before, parts, v), ring, number, own, column, sizes, OPTIONS)),
        ],
        [1],
        [FETCH_REGISTERS],
    )
