"""One query of each sequence over a long cache, 1 of 3: the scores of blocks, side by side. Symbols: ../../README.md.

Nothing is added up across blocks here, so any number of programs may share a row. The three kernels:
    score_blocks   the scores of a block, as `forward` has them before its softmax, and the largest of each head
    exponentials   the softmax of a block, once the largest score of the blocks after it is known
    sum_values     the sums over blocks, from the last to the first, which are all that has to be in turn
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from retrograd.core.kernels.gluon import tma_load
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.rings import barriers

from ..scores import scores
from ..wgmma import allocate, matrix, of_products, over_columns
from .place import ROWS, at_block, place_of


@gluon.jit(do_not_specialize=["sizes"])
def score_blocks(q, k, after_ptr, scores_ptr, largest_ptr, sizes, OPTIONS: gl.constexpr, OVERLAP: gl.constexpr):
    """A program has a block of a row's head of keys. scores (rows of heads of keys, blocks, share, keys), largest (rows
    of heads of keys, share, blocks): those of blocks that no query sees are not written. q, k: tensor descriptors.
    """
    KEYS: gl.constexpr = OPTIONS.keys
    S: gl.constexpr = of_products(KEYS)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    q_block = allocate(q, 1)
    k_block = allocate(k, 1)
    full = barriers(1, 1)
    fence_async_shared()
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    number = gl.program_id(0) // sizes.blocks
    block = gl.program_id(0) % sizes.blocks
    own = place_of(number, after_ptr, sizes, OPTIONS)
    if (block >= own.low) & (block < own.high):
        mbarrier.expect(full.index(0), q.block_type.nbytes + k.block_type.nbytes)
        tma_load(q, [number, 0, 0, 0], full.index(0), q_block.index(0))
        tma_load(k, at_block(k, own, block, sizes, KEYS), full.index(0), k_block.index(0))
        mbarrier.wait(full.index(0), 0)
        none = gl.zeros([ROWS, KEYS], gl.float32, S)
        s = over_columns(matrix(q_block.index(0)), matrix(k_block.index(0)), none, OPTIONS.size)
        s = warpgroup_mma_wait(0, deps=[s])
        s = scores(s, gl.zeros([ROWS], gl.int32, ROW), block, True, 1, own.keys, OPTIONS)
        head = gl.arange(0, ROWS, ROW)
        first = gl.cast(number, gl.int64) * sizes.share
        at = (first * sizes.blocks + block * sizes.share + head)[:, None] * KEYS
        j = gl.arange(0, KEYS, gl.SliceLayout(0, S))
        gl.store(scores_ptr + (at + j[None, :]), s, mask=(head < sizes.share)[:, None])
        gl.store(largest_ptr + ((first + head) * sizes.blocks + block), gl.max(s, 1), mask=head < sizes.share)
