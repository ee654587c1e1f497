"""Arithmetic shared by all plans."""

from __future__ import annotations

from .arch import Arch


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def warps_of(warps: int, arch: Arch) -> int:
    """The number of warps with as many threads as `warps` warps of 32 threads, at least 1."""
    return max(1, warps * 32 // arch.warp_size)
