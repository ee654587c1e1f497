"""Decays of channels between the steps of a block, as products of two factors that are at most 1.

Of two steps, level l is the highest bit in which their numbers differ. The last step of the first half of their 2^(l+1)
steps lies between them: the decay is that of the later one from there, times that of the earlier one up to there. On
each level a step is either a target or a source, and has one factor. Symbols: ../../README.md.
"""

import triton
import triton.language as tl


@triton.jit
def sums_at(slot, head, heads, steps, c, SIZES: tl.constexpr):
    """Offsets (steps, channels) of a head in an array of sums of log decays (slots, H, C, K)."""
    at = (tl.cast(slot, tl.int64) * heads + head) * (SIZES.C * SIZES.K)
    return at + (steps * SIZES.K)[:, None] + c[None, :]


@triton.jit
def is_target(level, C: tl.constexpr):
    """(C, 1): whether steps are targets on a level; the others are sources."""
    return ((tl.arange(0, C) >> level) & 1 == 1)[:, None]


@triton.jit
def have_level(level, C: tl.constexpr):
    """(C, C): whether a level is that of two steps, in either order."""
    half = tl.arange(0, C) >> level
    return (half[:, None] ^ half[None, :]) == 1


@triton.jit
def toward_middle(sums, head_sums_ptr, c, level, SIZES: tl.constexpr):
    """(C, channels): the decays from the middle on, or up to it.

    `sums` are those of a block, and `head_sums_ptr` is where they are in memory.
    """
    C: tl.constexpr = SIZES.C
    middle = ((tl.arange(0, C) >> level) | 1) - 1  # the first half's number
    middle = ((middle + 1) << level) - 1
    at = (middle * SIZES.K)[:, None] + c[None, :]
    between = sums - tl.load(head_sums_ptr + at, mask=(c < SIZES.K)[None, :], other=0.0)
    return tl.exp2(tl.where(is_target(level, C), between, -between))
