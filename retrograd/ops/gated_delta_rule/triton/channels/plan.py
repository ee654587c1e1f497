"""Tile sizes: those of the kernels for one decay a head, which carry the states here too. Symbols: ../../README.md."""

from __future__ import annotations

from dataclasses import replace

from retrograd.core.arch import Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.spec import Pass

from ...op import Spec
from ..plan import Tile
from ..plan import planned as planned_of_heads

# Channels of keys in one product, at most: a program has six matrices of a block's steps and these in registers.
CHANNELS, SINGLE_CHANNELS = 32, 16


def planned(spec: Spec, arch: Arch, which: Pass) -> Tile:
    """The tile sizes of a call, the same for both passes."""
    tile = planned_of_heads(spec, arch, which)
    most = SINGLE_CHANNELS if BYTES[spec.v.dtype] == 4 else CHANNELS
    return replace(
        tile, keys=min(tile.keys, most), prepare_warps=8, pair_warps=4, state_warps=4 if arch.backend == "hip" else 8
    )
