"""A product whose left operand is a transposed product, as in the backward passes of attention and ssd."""

import triton
import triton.language as tl


@triton.jit
def through_transposed(a_ptr, b_ptr, c_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """out (N, K) = (a b^T)^T c; a (M, K), b (N, K), c (M, K)."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + n[:, None] * K + k[None, :])
    c = tl.load(c_ptr + m[:, None] * K + k[None, :])
    first = tl.dot(a, tl.trans(b), input_precision="ieee")
    out = tl.dot(tl.trans(first.to(c.dtype)), c, input_precision="ieee")
    tl.store(out_ptr + n[:, None] * K + k[None, :], out)
