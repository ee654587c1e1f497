"""Tile sizes: a pure function of the spec and the architecture.

The shape of a tile depends on N, the dtypes and the options alone, never on the number of rows: a row's sums are then
taken in the same order in every batch. Only the number of programs depends on the rows. The figures come from
`benchmarks/tune_rms_norm.py`; what was tried stands in README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrograd.core.arch import Arch

from .spec import Spec

# Columns that one program can hold in registers.
WHOLE_FORWARD = 32_768
WHOLE_BACKWARD = 16_384


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program works on.

    Attributes:
        rows: rows of a tile.
        columns: columns of a tile, a power of two.
        num_warps: warps a program.
        stages: tiles in flight; 1 loads each tile when it is needed.
        programs: most programs a head; fewer run where there are fewer tiles.
    """

    rows: int
    columns: int
    num_warps: int
    stages: int
    programs: int

    def programs_for(self, rows: int) -> int:
        """Programs that share `rows` rows of one head."""
        return min(self.programs, -(-rows // self.rows))


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def whole_forward(spec: Spec) -> bool:
    """Whether the forward pass holds a row in registers."""
    return power_of_two(spec.N) <= WHOLE_FORWARD


def whole_backward(spec: Spec) -> bool:
    """Whether the backward pass holds a row in registers."""
    return power_of_two(spec.N) <= WHOLE_BACKWARD


def forward(spec: Spec, arch: Arch) -> Tile:
    """The forward pass's tile."""
    if not whole_forward(spec):
        return Tile(rows=1, columns=4096, num_warps=8, stages=2, programs=1)
    columns = power_of_two(spec.N)
    rows = max(1, 2048 // columns)
    return Tile(rows, columns, _warps(rows * columns, 16, arch), stages=1, programs=2**31 - 1)


def backward(spec: Spec, arch: Arch) -> Tile:
    """The backward pass's tile, where a row is held whole."""
    columns = power_of_two(spec.N)
    rows = max(1, 2048 // columns)
    return Tile(rows, columns, _warps(rows * columns, 16, arch), stages=1, programs=_programs(columns))


def backward_columns(spec: Spec, arch: Arch) -> Tile:
    """The tile of the backward pass that owns columns."""
    return Tile(rows=4, columns=1024, num_warps=8, stages=2, programs=64)


def backward_row_means(spec: Spec, arch: Arch) -> Tile:
    """The tile that finds the row means."""
    return Tile(rows=1, columns=4096, num_warps=8, stages=2, programs=1)


def _programs(columns: int) -> int:
    return 264 if columns <= 4096 else 132


def _warps(elements: int, per_thread: int, arch: Arch) -> int:
    warps = elements // (per_thread * arch.warp_size)
    return max(1, min(power_of_two(warps), 1024 // arch.warp_size))
