"""Tile sizes and structure: a pure function of the spec and the architecture.

A tile decides the order of the arithmetic. It depends on D and the dtypes alone, never on B, T or how many sequences
are packed, so a sequence has the same bits in every batch and packing.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch
from retrograd.core.spec import Pass

from ..op import Spec
from .arrays import TileSizes

BLOCK = 1024  # elements per program of the kernel that clears
FEW_CHANNELS = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one program: `rows` consecutive runs of `steps` steps, of `channels` channels.

    Attributes:
        steps: steps that a thread holds in registers.
        levels: log2 of the rows; a group has as many tiles as a tile has rows.
        channels: neighbouring channels; rows * channels threads.
    """

    steps: int
    levels: int
    channels: int

    @property
    def rows(self) -> int:
        """Runs of a tile."""
        return 1 << self.levels

    @property
    def time(self) -> int:
        """Steps of a tile."""
        return self.steps << self.levels

    @property
    def sizes(self) -> TileSizes:
        """The tile as kernels take it."""
        return TileSizes(self.steps, self.levels, self.channels, self.rows, self.time)

    def num_warps(self, arch: Arch) -> int:
        """Warps with a thread for each run."""
        return max(1, self.rows * self.channels // arch.warp_size)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass.

    Attributes:
        tile: the tile of one program.
        one_pass: whether tiles pass on their state while they hold their data, so that a and b are read once; else
            three kernels compute the states first. The bits are the same.
    """

    tile: Tile
    one_pass: bool


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    return Plan((forward if which == "fwd" else backward)(spec), one_pass(arch))


def forward(spec: Spec) -> Tile:
    """The forward pass's tile: a and b in registers. Few channels make many tiles in time, so these are longer."""
    if spec.complex:
        return Tile(steps=16, levels=4, channels=16)
    return Tile(steps=64 if spec.channels <= FEW_CHANNELS else 32, levels=3, channels=16)


def backward(spec: Spec) -> Tile:
    """The backward pass's tile: dh, a and h in registers."""
    if spec.complex:
        return Tile(steps=8, levels=4, channels=16)
    return Tile(steps=48 if spec.channels <= FEW_CHANNELS else 32, levels=3, channels=16)


def one_pass(arch: Arch) -> bool:
    """Whether tiles may pass on their state.

    This needs programs that start in the order of their ids, and atomic 64-bit writes. NVIDIA has both; other GPUs have
    not been tested.
    """
    return arch.backend == "cuda"


def tiles(spec: Spec, tile: Tile) -> int:
    """Tiles of a row; at least one, which writes the final state. Packed: slots for the tiles of all sequences."""
    if spec.packed:
        return spec.time // tile.time + spec.sequences
    return max(1, -(-spec.time // tile.time))
