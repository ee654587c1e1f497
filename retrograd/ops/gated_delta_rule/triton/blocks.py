"""Matrix products, and what is read as their operands. Symbols: ../README.md."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, OPERANDS: tl.constexpr):
    """A matrix product in fp32."""
    precision: tl.constexpr = "tf32x3" if OPERANDS.SPLIT else "ieee"
    return tl.dot(a.to(OPERANDS.DTYPE), b.to(OPERANDS.DTYPE), input_precision=precision)


@triton.jit
def add_product(a, b, total, OPERANDS: tl.constexpr):
    """The same, added to fp32."""
    precision: tl.constexpr = "tf32x3" if OPERANDS.SPLIT else "ieee"
    return tl.dot(a.to(OPERANDS.DTYPE), b.to(OPERANDS.DTYPE), total, input_precision=precision)


@triton.jit
def product_by_rows(a, b, OPERANDS: tl.constexpr):
    """a b^T of a (M, K) and b (N, K), in fp32.

    Of fp32, halves of the terms are added apart: tensor cores truncate their sums, so that errors grow with the terms.
    """
    M: tl.constexpr = a.shape[0]
    N: tl.constexpr = b.shape[0]
    K: tl.constexpr = a.shape[1]
    if OPERANDS.SPLIT and K > 16:  # a product takes 16 terms or more
        first, second = tl.split(tl.permute(tl.reshape(a, [M, 2, K // 2]), [0, 2, 1]))
        other_first, other_second = tl.split(tl.permute(tl.reshape(b, [N, 2, K // 2]), [0, 2, 1]))
        return product(first, tl.trans(other_first), OPERANDS) + product(second, tl.trans(other_second), OPERANDS)
    else:
        return product(a, tl.trans(b), OPERANDS)


@triton.jit
def states_at(ptr, slot, head, heads, v, k, SIZES: tl.constexpr):
    """Pointers to some channels of a head's state in an array (slots, H, V, K)."""
    at = ptr + (tl.cast(slot, tl.int64) * heads + head) * (SIZES.V * SIZES.K)
    return at + (v * SIZES.K)[:, None] + k[None, :]


@triton.jit
def load_state(ptr, slot, head, heads, v, k, there, SIZES: tl.constexpr):
    """The state there; zeros where it is not there."""
    mask = (v < SIZES.V)[:, None] & (k < SIZES.K)[None, :] & there
    return tl.load(states_at(ptr, slot, head, heads, v, k, SIZES), mask=mask, other=0.0)


@triton.jit
def pairs_at(slot, head, heads, C: tl.constexpr):
    """Offsets (target, source) of a head in an array (slots, heads, C, C)."""
    j = tl.arange(0, C)
    return (tl.cast(slot, tl.int64) * heads + head) * (C * C) + j[:, None] * C + j[None, :]


@triton.jit
def vectors_at(slot, head, heads, C: tl.constexpr):
    """The offset of a head in an array (slots, heads, 2, C): sums of log decays, then beta."""
    return (tl.cast(slot, tl.int64) * heads + head) * (2 * C)
