"""The inverses T, for Hopper, where each channel has a decay of its own. Symbols: ../../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from retrograd.core.kernels.gluon import block_barrier, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.warpgroups import products, tile_offsets

from ..blocks import HALF, C
from ..prepare import PAIR, N, finish, put_terms, separate, substitute


@gluon.jit(do_not_specialize=["call"])
def invert(systems_ptr, inverse, call, OVERLAP: gl.constexpr):
    """systems (slots H C, C), fp32, below the diagonal: A. inverse (slots H C, C): (I + A)^-1.

    A program takes a block and two heads.
    """
    DTYPE: gl.constexpr = inverse.dtype
    X: gl.constexpr = products(C)
    HALVES: gl.constexpr = products(N)
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, HALF], DTYPE)
    TERMS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, N], DTYPE)
    out_s = gl.allocate_shared_memory(DTYPE, [2, C, C], PANEL)
    terms_s = gl.allocate_shared_memory(DTYPE, [4, C, N], TERMS)
    blocks_s = gl.allocate_shared_memory(gl.float32, [2 * PAIR, N, N], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    H = call.H
    pairs = (H + PAIR - 1) // PAIR
    own = gl.program_id(0) // pairs * H + gl.program_id(0) % pairs * PAIR
    # Of an odd number of heads the last comes twice.
    other = gl.minimum(own + 1, (gl.program_id(0) // pairs + 1) * H - 1)
    offsets = tile_offsets(C, C, C, X)
    x = gl.load(systems_ptr + gl.cast(own, gl.int64) * (C * C) + offsets)
    y = gl.load(systems_ptr + gl.cast(other, gl.int64) * (C * C) + offsets)
    high, low = separate(x, blocks_s.slice(0, 2), DTYPE, HALVES)
    put_terms(terms_s, 2, high, low)
    other_high, other_low = separate(y, blocks_s.slice(2, 2), DTYPE, HALVES)
    put_terms(terms_s, 0, other_high, other_low)
    substitute(blocks_s)
    block_barrier()
    LEFT: gl.constexpr = gl.DotOperandLayout(0, HALVES, 2)
    other_high = gl.convert_layout(terms_s.index(0).load(LEFT), HALVES, assert_trivial=True)
    other_low = gl.convert_layout(terms_s.index(1).load(LEFT), HALVES, assert_trivial=True)
    high = gl.convert_layout(terms_s.index(2).load(LEFT), HALVES, assert_trivial=True)
    low = gl.convert_layout(terms_s.index(3).load(LEFT), HALVES, assert_trivial=True)
    finish(high, low, blocks_s.slice(0, 2), terms_s, out_s.index(0), X, HALVES)
    tma_store(inverse, [own * C, 0], out_s.index(0))
    finish(other_high, other_low, blocks_s.slice(2, 2), terms_s, out_s.index(1), X, HALVES)
    if other > own:
        tma_store(inverse, [other * C, 0], out_s.index(1))
    tma.store_wait(0)
