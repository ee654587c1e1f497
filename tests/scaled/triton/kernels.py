from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count(x_ptr, counts_ptr):
    """counts[p] += 1, by program p alone."""
    p = tl.program_id(0)
    tl.store(counts_ptr + p, tl.load(counts_ptr + p) + 1)


@triton.jit
def scaled(x_ptr, scale_ptr, seed_ptr, counts_ptr, y_ptr, size, BLOCK: tl.constexpr):
    """y = scale x + seed + counts[p] of block p."""
    p = tl.program_id(0)
    at = p * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at, mask=at < size, other=0.0)
    if scale_ptr is not None:
        y *= tl.load(scale_ptr)
    if seed_ptr is not None:
        y += tl.load(seed_ptr).to(tl.float32)
    if counts_ptr is not None:
        y += tl.load(counts_ptr + p).to(tl.float32)
    tl.store(y_ptr + at, y, mask=at < size)
