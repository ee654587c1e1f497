"""One query of each sequence over a long cache, 2 of 3: the softmax of blocks. Symbols: ../../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from ..softmax import part_sums, softmax
from ..wgmma import WARPS, of_products
from .place import PARTS, ROWS, place_of

AT_ONCE = gl.constexpr(64)  # blocks whose largest scores are read side by side


@gluon.jit
def largest_of(largest_ptr, number, start, end, sizes, ROW: gl.constexpr):
    """The largest score of each head in the blocks from start to before end; -inf if there is none."""
    L: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    head = gl.arange(0, ROWS, gl.SliceLayout(1, L))
    block = gl.arange(0, AT_ONCE, gl.SliceLayout(0, L))
    at = (gl.cast(number, gl.int64) * sizes.share + head)[:, None] * sizes.blocks
    found = gl.full([ROWS, AT_ONCE], float("-inf"), gl.float32, L)
    for first in range(start, end, AT_ONCE):
        there = (head < sizes.share)[:, None] & (first + block < end)[None, :]
        more = gl.load(largest_ptr + (at + (first + block)[None, :]), mask=there, other=float("-inf"))
        found = gl.maximum(found, more)
    return gl.convert_layout(gl.max(found, 1), ROW)


@gluon.jit(do_not_specialize=["sizes"])
def exponentials(
    after_ptr,
    scores_ptr,
    largest_ptr,
    p_ptr,
    before_ptr,
    parts_ptr,
    sizes,
    OPTIONS: gl.constexpr,
    SPAN: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """A program has SPAN blocks of a row's head of keys. Of each block: p (share, keys), as `forward` rounds it; before
    (64), the factor of the sums before it; parts (share, 8), the sums of its exponentials that threads have.
    """
    KEYS: gl.constexpr = OPTIONS.keys
    S: gl.constexpr = of_products(KEYS)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    spans = gl.cdiv(sizes.blocks, SPAN)
    number = gl.program_id(0) // spans
    first = gl.program_id(0) % spans * SPAN
    own = place_of(number, after_ptr, sizes, OPTIONS)
    start, end = gl.maximum(first, own.low), gl.minimum(first + SPAN, own.high)
    if start < end:
        head = gl.arange(0, ROWS, ROW)
        j = gl.arange(0, KEYS, gl.SliceLayout(0, S))
        there = (head < sizes.share)[:, None]
        largest = largest_of(largest_ptr, number, end, own.high, sizes, ROW)
        for n in range(end - start):
            block = gl.cast(number, gl.int64) * sizes.blocks + (end - 1 - n)
            at = (block * sizes.share + head)[:, None] * KEYS + j[None, :]
            s = gl.load(scores_ptr + at, mask=there, other=0.0)
            largest, before, p = softmax(s, largest, OPTIONS.factors.exponent)
            gl.store(p_ptr + at, p.to(p_ptr.dtype.element_ty), mask=there)
            gl.store(before_ptr + (block * ROWS + head), before)
            parts = part_sums(p)
            T: gl.constexpr = parts.type.layout
            row, part = gl.arange(0, ROWS, gl.SliceLayout(1, T)), gl.arange(0, PARTS, gl.SliceLayout(0, T))
            at_part = (block * sizes.share + row)[:, None] * PARTS + part[None, :]
            gl.store(parts_ptr + at_part, parts, mask=(row < sizes.share)[:, None])
