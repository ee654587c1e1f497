"""Attention, forward, on Hopper: which pairs dropout keeps. Symbols: ../README.md.

A thread draws the numbers of its own pairs. They follow from places alone, so they are drawn while products run. What
is left to do behind the exponentials is one instruction for two pairs.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import before_waits, behind_products
from retrograd.core.kernels.warpgroups import converting

from ..device import philox
from ..op import FORMS
from .tickets import of_dropout

HALF = FORMS // 2


class Draw(NamedTuple):
    """What the numbers of a tile of queries are drawn by is in ticket `number`."""

    tickets: Any
    number: Any


@gluon.constexpr_function
def of_calls(calls):
    """The layout of 64 queries and so many calls: a thread has those of its keys in the result of a product."""
    registers = [[8, 0], *([0, 4 << i] for i in range((calls // 4).bit_length() - 1))]
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, calls])


@gluon.constexpr_function
def comparing(dropped):
    """The instructions that make 1 of all bits in those halves of a word that are at least `dropped`, else 0.

    A minimum or a maximum brings halves into a range in which an addition changes the sign where they are kept, without
    a carry. Signs are copied to all bits.
    """
    nearer, bound = ("min", dropped) if dropped <= HALF else ("max", dropped - 1)
    added = 0x10001 * (HALF - dropped) % 2**32
    return (
        f"{{ .reg .b32 x; mov.b32 x, {0x10001 * bound:#x}; {nearer}.u16x2 x, $1, x; "
        f"add.u32 x, x, {added:#x}; prmt.b32 $0, x, x, 0xbb99; }}"
    )


@gluon.jit
def kept_halves(word, DROPPED: gl.constexpr):
    """1 in all bits of those halves of words that are at least DROPPED, else 0."""
    return gl.inline_asm_elementwise(comparing(DROPPED), "=r,r", [word], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def kept(draw, i, block, KEYS: gl.constexpr, DROPPED: gl.constexpr):
    """Bits (queries, KEYS / 2), 16 for each pair of queries i and a block of keys: 1 where dropout keeps it.

    The pairs are those of `triton.pairs.kept`. It comes between products and their wait.
    """
    QUERIES: gl.constexpr = i.shape[0]
    CALLS: gl.constexpr = KEYS // 8
    L: gl.constexpr = of_calls(CALLS)
    call = block * CALLS + gl.arange(0, CALLS, gl.SliceLayout(0, L))
    query = gl.convert_layout(i, gl.SliceLayout(1, L), assert_trivial=True)
    # Read where they are needed: there are no registers to keep them in.
    number = behind_products(draw.number)
    seed = gl.cast(of_dropout(draw.tickets, number, "seed"), gl.uint32)
    row = gl.cast(of_dropout(draw.tickets, number, "row"), gl.uint32)
    start = gl.cast(of_dropout(draw.tickets, number, "start"), gl.uint32)
    a, b, c, d = philox(call.to(gl.uint32)[None, :], query.to(gl.uint32)[:, None], row, start, seed, True)
    # One number of a thread in which all its calls are.
    calls = gl.xor_sum(gl.xor_sum(gl.reshape(a ^ c, [QUERIES // 16, 2, 8, CALLS // 4, 4]), 3), 1)
    before_waits(calls.to(gl.float32, bitcast=True))
    a, b, c, d = kept_halves(a, DROPPED), kept_halves(b, DROPPED), kept_halves(c, DROPPED), kept_halves(d, DROPPED)
    bits = gl.join(gl.join(a, b), gl.join(c, d))  # (queries, calls, low bit of the word's number, high bit)
    bits = gl.reshape(bits, [QUERIES, KEYS // 32, 4, 2, 2]).permute(0, 1, 4, 3, 2)
    return gl.reshape(bits, [QUERIES, KEYS // 2])


@gluon.jit
def for_product(p, bits, DTYPE: gl.constexpr, LEFT: gl.constexpr):
    """Probabilities in 16 bits for a product; with dropout's bits those that are kept, else 0, two in 32 bits.

    As single ones they would be taken apart on their way through a loop. `upscale` is still to multiply them.
    """
    if bits is None:
        return gl.convert_layout(p.to(DTYPE), LEFT, assert_trivial=True)
    else:
        left, right = gl.reshape(p, [p.shape[0], p.shape[1] // 2, 2]).split()
        return two_kept(left, right, gl.convert_layout(bits, left.type.layout, assert_trivial=True), DTYPE)


@gluon.jit
def two_kept(left, right, bits, DTYPE: gl.constexpr):
    """fp32 rounded, two in 32 bits, of which only some are kept."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 both; " + converting(DTYPE) + " both, $2, $1; and.b32 $0, both, $3; }",
        "=r,f,f,r",
        [left, right, bits],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def operand(p, DTYPE: gl.constexpr, LEFT: gl.constexpr):
    """What `for_product` returns, as the left operand of a product."""
    if p.dtype == gl.int32:
        both = gl.join(p.to(gl.int16), (p >> 16).to(gl.int16))
        both = gl.reshape(both, [p.shape[0], 2 * p.shape[1]]).to(DTYPE, bitcast=True)
        return gl.convert_layout(both, LEFT, assert_trivial=True)
    else:
        return p
