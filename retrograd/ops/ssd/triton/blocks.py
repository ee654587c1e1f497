"""Matrix products of the Triton kernels, and states as their operands."""

import triton
import triton.language as tl


@triton.jit
def load_state(ptr, place, head, H, p, n, there, P: tl.constexpr, N: tl.constexpr):
    """Some channels and states of a head from an array (places, H, P, N); zeros where it is not there."""
    at = ptr + (tl.cast(place, tl.int64) * H + head) * (P * N)
    mask = (p < P)[:, None] & (n < N)[None, :] & there
    return tl.load(at + (p * N)[:, None] + n[None, :], mask=mask, other=0.0)


@triton.jit
def product(a, b, DTYPE: tl.constexpr, SPLIT: tl.constexpr):
    """A matrix product of operands in DTYPE, in fp32; SPLIT: those of fp32 in two terms of tf32."""
    return tl.dot(a.to(DTYPE), b.to(DTYPE), input_precision="tf32x3" if SPLIT else "ieee")


@triton.jit
def add_product(a, b, total, DTYPE: tl.constexpr, SPLIT: tl.constexpr):
    """The same, added to fp32."""
    return tl.dot(a.to(DTYPE), b.to(DTYPE), total, input_precision="tf32x3" if SPLIT else "ieee")
