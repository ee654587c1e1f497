"""The inverses T, for Hopper, where each channel has a decay of its own. Symbols: ../../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.warpgroups import products, tile_offsets

from ..blocks import HALF, C
from ..prepare import PAIR, N, finish_both, put_terms, separate


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
    finish_both(inverse, own, other, blocks_s, terms_s, out_s, X, HALVES)
