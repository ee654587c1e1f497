"""Arithmetic shared by all plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from .arch import Arch

T = TypeVar("T")
TUNED = "sm_90"  # the architecture that plans are tuned for first


def of_arch(tables: Mapping[str, T], arch: Arch) -> T:
    """An architecture's own table, by its name; where it has none, that of the architecture tuned for first."""
    return tables.get(arch.name, tables[TUNED])


def warps_of(warps: int, arch: Arch) -> int:
    """The number of warps with as many threads as `warps` warps of 32 threads, at least 1."""
    return max(1, warps * 32 // arch.warp_size)
