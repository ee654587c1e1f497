"""The inverse of I and a matrix below the diagonal. Symbols: ../README.md."""

import triton
import triton.language as tl

SMALL = tl.constexpr(16)  # the size of the blocks on the diagonal with which it begins


@triton.jit
def joined(X, A, row, column, level: tl.constexpr, precision: tl.constexpr):
    """The inverse of blocks of 2^(level + 1), from X of halves of them: X - X A X, with A below the halves."""
    below = ((row >> (level + 1)) == (column >> (level + 1))) & ((row >> level) != (column >> level))
    half = tl.dot(X, tl.where(below, A, 0.0), input_precision=precision)
    return X - tl.dot(half, X, input_precision=precision)


@triton.jit
def inverse(A, OPERANDS: tl.constexpr):
    """(I + A)^-1 (C, C) in fp32, of an A that is 0 on and above the diagonal.

    Blocks of 16 on the diagonal come first, side by side, then pairs of them. Every number between is bounded as the
    inverse is. For operands of 16 bits, to which the inverse is rounded, the last products are in tf32.
    """
    C: tl.constexpr = A.shape[0]
    N: tl.constexpr = C // SMALL
    fine: tl.constexpr = "tf32x3" if OPERANDS.TF32 else "ieee"
    coarse: tl.constexpr = "tf32" if OPERANDS.TF32 and not OPERANDS.SPLIT else fine
    i = tl.arange(0, SMALL)
    n = tl.arange(0, N)
    own = n[:, None, None, None] == n[None, None, :, None]
    blocks = tl.sum(tl.where(own, tl.reshape(A, [N, SMALL, N, SMALL]), 0.0), 2)
    row = i[None, :, None]
    column = i[None, None, :]
    X = tl.where(row == column, 1.0, 0.0) - tl.where((row >> 1) == (column >> 1), blocks, 0.0)
    for level in tl.static_range(1, 4):
        X = joined(X, blocks, row, column, level, fine)
    X = tl.reshape(tl.where(own, X[:, :, None, :], 0.0), [C, C])
    j = tl.arange(0, C)
    for level in tl.static_range(4, 6):
        if (2 << level) <= C:
            X = joined(X, A, j[:, None], j[None, :], level, coarse)
    return X
