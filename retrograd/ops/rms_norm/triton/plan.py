"""Tile sizes: a pure function of the spec and the architecture.

The shape of a tile depends on N, the dtypes and the options alone, never on the number of rows: a row is computed by
the same binary in every batch, with its sums in the same order. Only the number of programs depends on the rows. The
tables were measured with `benchmarks/tune_rms_norm.py` on an H200; ../NOTES.md lists what else was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton import next_power_of_2

from retrograd.core.arch import Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.spec import Pass
from retrograd.core.tiles import of_arch, warps_of

from ..op import Spec

# Columns that one program can hold in registers without spilling; the second number is for calls with further arrays.
WHOLE_FORWARD = (16_384, 8_192)
WHOLE_BACKWARD = (8_192, 4_096)


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one program.

    Attributes:
        rows: rows of a tile.
        columns: columns of a tile, a power of two.
        num_warps: warps per program.
        stages: tiles in flight; 1 loads each tile when it is needed.
        programs: most programs per head, for kernels that loop over tiles; fewer tiles run fewer programs.
    """

    rows: int
    columns: int
    num_warps: int
    stages: int = 1
    programs: int = 1

    def programs_for(self, rows: int) -> int:
        """Programs that share `rows` rows of one head; one for few tiles, which then needs no second stage."""
        tiles = -(-rows // self.rows)
        return min(self.programs, tiles) if tiles > FEW_TILES else min(tiles, 1)


# By the arrays of a call beside x and the weight: columns -> rows, warps. One tile per program. Two wide rows per tile
# halve the reads of the weight from L2.
FORWARD = {
    "sm_90": {
        "plain": {128: (16, 4), 256: (32, 16), 512: (4, 4), 1024: (2, 4), 2048: (2, 8), 4096: (2, 8), 8192: (2, 16)},
        "gated": {128: (16, 8), 256: (8, 8), 512: (2, 4), 1024: (1, 4), 2048: (1, 8), 4096: (1, 8), 8192: (2, 16)},
    }
}

# Architecture -> columns -> rows, warps, stages, programs.
BACKWARD = {
    "sm_90": {
        "plain": {
            128: (64, 8, 3, 132),
            256: (4, 2, 4, 512),
            512: (8, 4, 3, 256),
            1024: (4, 4, 3, 256),
            2048: (4, 8, 3, 132),
            4096: (2, 8, 3, 132),
            8192: (1, 16, 3, 132),
        },
        "residual": {
            128: (8, 2, 3, 512),
            256: (2, 1, 3, 1024),
            512: (4, 4, 3, 256),
            1024: (4, 4, 3, 256),
            2048: (2, 8, 3, 132),
            4096: (1, 16, 4, 132),
            8192: (1, 32, 3, 132),
        },
        "gated": {
            128: (8, 1, 3, 1024),
            256: (4, 1, 3, 1024),
            512: (2, 2, 3, 512),
            1024: (1, 4, 3, 512),
            2048: (1, 8, 3, 264),
            4096: (1, 16, 4, 132),
            8192: (1, 16, 3, 132),  # only if `again`
        },
    }
}
MOST_ROWS = 128
# One program computes this many tiles in at most the time that the launch of a second stage takes.
FEW_TILES = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass.

    Attributes:
        whole: whether a program holds rows in registers; longer ones are read in parts.
        tile: that of the kernel that writes the results or gradients.
        means: that of the kernel that computes the row means first, in the backward pass of longer rows.
        again: whether the backward pass computes its float32 values twice from a row of two-byte elements.
    """

    whole: bool
    tile: Tile
    means: Tile | None = None
    again: bool = False


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    if which == "fwd":
        return Plan(whole_forward(spec), forward(spec, arch))
    if whole_backward(spec, arch):
        return Plan(True, backward(spec, arch), again=again(spec, arch))
    return Plan(False, backward_columns(spec, arch), backward_row_means(spec, arch), again(spec, arch))


def whole_forward(spec: Spec) -> bool:
    """Whether the forward pass holds a row in registers."""
    return _columns(spec) <= WHOLE_FORWARD[_extra_arrays(spec) > 0]


def whole_backward(spec: Spec, arch: Arch) -> bool:
    """Whether the backward pass holds a row in registers."""
    return _columns(spec) <= WHOLE_BACKWARD[spec.gate is not None or spec.bias is not None] or again(spec, arch)


def again(spec: Spec, arch: Arch) -> bool:
    """Whether a gated row fits into registers in the backward pass if its float32 values are computed twice."""
    two_bytes = spec.gate is not None and all(BYTES[d] == 2 for d in (spec.x.dtype, spec.gate.dtype, spec.y_dtype))
    alone = spec.residual is None and spec.bias is None
    return arch.backend == "cuda" and two_bytes and alone and _columns(spec) == max(of_arch(BACKWARD, arch)["gated"])


def forward(spec: Spec, arch: Arch) -> Tile:
    """The forward pass's tile."""
    if not whole_forward(spec):
        return Tile(rows=1, columns=2048 if _extra_arrays(spec) else 4096, num_warps=warps_of(8, arch), stages=2)
    columns = _columns(spec)
    table = of_arch(FORWARD, arch)["gated" if spec.gate else "plain"]
    rows, warps = table.get(max(columns, min(table)), (1, 32))
    return Tile(_rows(rows, columns, min(table)), columns, warps_of(warps, arch))


def backward(spec: Spec, arch: Arch) -> Tile:
    """The backward pass's tile, if a row is held in registers."""
    columns = _columns(spec)
    table = of_arch(BACKWARD, arch)["gated" if spec.gate else "residual" if spec.residual else "plain"]
    rows, warps, stages, programs = table[max(columns, min(table))]
    if arch.backend != "cuda":
        stages = 1
    if spec.gate and (spec.residual or spec.bias):
        # One more array or sum needs registers.
        rows, warps = (rows // 2, warps) if rows > 1 else (1, min(16, 2 * warps))
    rows = _rows(rows, columns, min(table))
    if spec.N % 8:
        rows = max(1, rows // 2)  # unaligned rows are read element by element, which needs more addresses
    return _within_shared_memory(Tile(rows, columns, warps_of(warps, arch), stages, programs), spec, arch)


def _columns(spec: Spec) -> int:
    """Columns of a tile that holds a row."""
    return next_power_of_2(max(spec.N, 1))


def _rows(rows: int, columns: int, narrowest: int) -> int:
    """Rows of a tile; below the table's narrowest width, as many as keep its number of elements."""
    return rows if columns >= narrowest else min(MOST_ROWS, rows * narrowest // columns)


def backward_columns(spec: Spec, arch: Arch) -> Tile:
    """The tile of backward programs that own a block of columns, for longer rows."""
    stages = 2 if arch.backend == "cuda" else 1
    tile = Tile(rows=4, columns=1024, num_warps=warps_of(8, arch), stages=stages, programs=64)
    return _within_shared_memory(tile, spec, arch)


def backward_row_means(spec: Spec, arch: Arch) -> Tile:
    """The tile of the kernel that computes the row means."""
    return Tile(rows=1, columns=4096, num_warps=warps_of(8, arch), stages=2)


def _extra_arrays(spec: Spec) -> int:
    """Arrays of the size of x beside x and y; each needs registers."""
    return (spec.gate is not None) + (spec.residual is not None)


def _within_shared_memory(tile: Tile, spec: Spec, arch: Arch) -> Tile:
    """The tile with fewer stages, until the tiles in flight fit; with a residual these include dsum."""
    element = BYTES[spec.y_dtype] + BYTES[spec.sum_dtype] * (2 if spec.residual else 1)
    element += BYTES[spec.gate.dtype] if spec.gate else 0

    def fits(tile: Tile) -> bool:
        in_flight = (tile.stages - 1) * tile.rows * tile.columns * element
        return in_flight <= arch.shared_memory * 7 // 8  # the rest is for the reductions

    while not fits(tile) and tile.stages > 1:
        tile = replace(tile, stages=tile.stages - 1)
    return tile
