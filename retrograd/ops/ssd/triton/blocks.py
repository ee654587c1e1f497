"""Matrix products of the Triton kernels, and states as their operands. Symbols: ../README.md."""

import triton
import triton.language as tl


@triton.jit
def load_state(ptr, slot, head, H, p, n, there, SIZES: tl.constexpr):
    """Some channels and states of a head from an array (slots, H, P, N); zeros where it is not there."""
    at = ptr + (tl.cast(slot, tl.int64) * H + head) * (SIZES.P * SIZES.N)
    mask = (p < SIZES.P)[:, None] & (n < SIZES.N)[None, :] & there
    return tl.load(at + (p * SIZES.N)[:, None] + n[None, :], mask=mask, other=0.0)


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
