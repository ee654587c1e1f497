"""The tiles of the Hopper kernels of attention."""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ..op import Spec

MULTIPROCESSORS = 132  # of an H200; a program stays on each


@dataclass(frozen=True)
class Plan:
    """The tiles of the kernels.

    Attributes:
        queries: of one half of a tile of the forward pass; each half has warps of its own.
        keys: of a block.
        stages: blocks of k, and of v, in shared memory.
        registers: of a thread that attends.
        spills: spill instructions that tests allow: of one address, with windows, in no loop without a mask.
        walked_keys, walked_queries: of a tile of the backward pass.
        walk_spills: spill instructions that tests allow there.
        programs: of the forward pass, at most; like `section`, they only decide the time.
        section: bytes of keys and values of the heads that are computed side by side.
    """

    queries: int
    keys: int
    stages: int
    registers: int = 232
    spills: int = 0
    walked_keys: int = 128
    walked_queries: int = 64
    walk_spills: int = 0
    programs: int = MULTIPROCESSORS
    section: int = 2**25


# Width of a head.
TUNED = {64: Plan(64, 128, 2, spills=30), 128: Plan(64, 128, 2, spills=30, walk_spills=90)}


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The tiles of a pass: a function of the size of a head."""
    return TUNED[spec.head_size]
