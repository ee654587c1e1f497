"""One query of each sequence over a short cache: a walk over all blocks that it sees. Symbols: ../../README.md.

A program has a head of keys of a row, with all heads of queries that share it, and some or all columns of its values.
Its warps are of two kinds, as in `forward`:
    fetch   one warp, the producer: copies q, and block after block of k and v, by TMA
    attend  one group, the consumer: the scores, the softmax and the sums of `forward`
"""

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
from retrograd.core.kernels.rings import Ring, barriers, release, ring_of, stage_of, wait_full

from ..forward import Rings, fetch_block
from ..schedule import unmasked
from ..scores import scores
from ..softmax import Sums, add_block, part_sums, softmax
from ..wgmma import allocate, matrix, of_products, over_columns
from .place import ROWS, at_block, place_of, store_result

FETCH_REGISTERS = gl.constexpr(24)


@gluon.jit
def fetch(q, k, v, rings, own, column, sizes, OPTIONS: gl.constexpr):
    """The producer: copies q, then blocks from the last to the first."""
    mbarrier.expect(rings.q.full.index(0), q.block_type.nbytes)
    tma_load(q, [own.row * sizes.groups + own.group, 0, 0, 0], rings.q.full.index(0), rings.q.blocks.index(0))
    for n in range(own.high - own.low):
        block = own.high - 1 - n
        fetch_block(k, at_block(k, own, block, sizes, OPTIONS.keys), rings.k, n)
        fetch_block(v, at_block(v, own, block, sizes, OPTIONS.keys, column), rings.v, n)


@gluon.jit
def attend(out_ptr, rings, own, column, sizes, OPTIONS: gl.constexpr):
    """The consumer: the same steps as those of a group of `forward`, for a sequence of one query."""
    TYPE: gl.constexpr = rings.v.blocks.dtype
    KEYS: gl.constexpr = OPTIONS.keys
    WINDOW: gl.constexpr = OPTIONS.window
    COLUMNS: gl.constexpr = rings.v.blocks.shape[len(rings.v.blocks.shape) - 1]
    S: gl.constexpr = of_products(KEYS)
    R: gl.constexpr = of_products(COLUMNS)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, R, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    none = gl.zeros([ROWS, KEYS], gl.float32, S)
    i = gl.zeros([ROWS], gl.int32, ROW)  # each row is the sequence's only query, of another head
    bottom, top = unmasked(0, 1, own.keys, own.low, own.high, WINDOW, 1, KEYS)

    q = matrix(rings.q.blocks.index(0))
    wait_full(rings.q, 0)
    wait_full(rings.k, 0)
    s = warpgroup_mma_wait(0, deps=[over_columns(q, matrix(rings.k.blocks.index(0)), none, OPTIONS.size)])
    release(rings.k, 0)
    s = scores(s, i, own.high - 1, True, 1, own.keys, OPTIONS)
    largest, _before, p = softmax(s, gl.full([ROWS], float("-inf"), gl.float32, ROW), OPTIONS.factors.exponent)
    total = part_sums(p)
    p = gl.convert_layout(p.to(TYPE), LEFT, assert_trivial=True)
    sums = Sums(largest, total, gl.zeros([ROWS, COLUMNS], gl.float32, R), p)
    last = own.high - 1 - own.low
    for n in range(last):
        block = own.high - 2 - n
        border = (block >= top) | (block < bottom)
        sums = add_block(sums, n, q, none, rings, i, block, border, 1, own.keys, OPTIONS)
    wait_full(rings.v, last)
    stage = stage_of(last, OPTIONS.stages)
    result = warpgroup_mma(sums.p, matrix(rings.v.blocks.index(stage)), sums.result, is_async=True)
    result = warpgroup_mma_wait(0, deps=[result])
    store_result(result, sums.total, out_ptr, own, column, sizes, OPTIONS.value_size)


@gluon.jit(do_not_specialize=["sizes"])
def walk(q, k, v, after_ptr, out_ptr, sizes, OPTIONS: gl.constexpr, OVERLAP: gl.constexpr):
    """q, k, v: tensor descriptors; a block of q has the heads of a head of keys."""
    STAGES: gl.constexpr = OPTIONS.stages
    k_blocks = allocate(k, STAGES)
    v_blocks = allocate(v, STAGES)
    COLUMNS: gl.constexpr = v_blocks.shape[len(v_blocks.shape) - 1]
    of_q = Ring(allocate(q, 1), barriers(1, 1), None)
    rings = Rings(of_q, ring_of(k_blocks, STAGES, 1), ring_of(v_blocks, STAGES, 1), None)
    fence_async_shared()
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    own = place_of(gl.program_id(0) // sizes.slices, after_ptr, sizes, OPTIONS)
    column = gl.program_id(0) % sizes.slices * COLUMNS
    gl.warp_specialize(
        [
            (attend, (out_ptr, rings, own, column, sizes, OPTIONS)),
            (fetch, (q, k, v, rings, own, column, sizes, OPTIONS)),
        ],
        [1],
        [FETCH_REGISTERS],
    )
