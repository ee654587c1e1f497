"""Tile sizes: a pure function of the spec and the architecture.

A tile's shape and its warps depend on D and the dtypes. The number of steps per program depends on the size of the
call, but it is a run-time number, and the additions that make an element of y or dx do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton import next_power_of_2

from retrograd.core.arch import KIB, Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.spec import Pass
from retrograd.core.tiles import of_arch, warps_of

from ..op import Spec

# Most products that a thread adds up one after another; more would cost accuracy of dweight.
LONGEST_WALK = 256
HOPPER_SHARED = 227 * KIB
NARROW = 4  # taps, for which the tables are tuned
MOST_REGISTERS = 128  # per thread, so that 4 programs of 4 warps fit on a multiprocessor


@dataclass(frozen=True, slots=True)
class Walk:
    """The tile of one program if channels are contiguous: lanes that walk over time.

    Attributes:
        lanes: parts of a program's time, walked over in parallel.
        channels: channels of a tile, a power of two.
        unroll: steps that are loaded together.
        num_warps: warps per program.
        stages: depth of the compiler's software pipeline; 1 is none.
        parallel: lanes that a call should have in all; a large enough call has about as many.
        max_registers: most registers per thread, so that the planned number of programs fits on a multiprocessor.
    """

    lanes: int
    channels: int
    unroll: int
    num_warps: int
    stages: int = 1
    parallel: int = 4096
    max_registers: int | None = None

    def steps(self, spec: Spec) -> int:
        """Steps that a lane walks over, a power of two."""
        steps = spec.batch * spec.time * -(-spec.channels // self.channels)
        wanted = next_power_of_2(steps // self.parallel)
        return max(self.unroll, min(LONGEST_WALK, wanted, next_power_of_2(-(-spec.time // self.lanes))))

    def chunks(self, spec: Spec) -> int:
        """Programs that share the time of a row."""
        return -(-spec.time // (self.lanes * self.steps(spec)))


@dataclass(frozen=True, slots=True)
class Vectors:
    """The tile of one program if time is contiguous: vectors of time. A program loops over tiles.

    Attributes:
        channels: channels of a tile.
        blocks: vectors of time per channel of a tile.
        vector: steps of a vector: 16 bytes.
        num_warps: warps per program.
        parallel: tiles that a call should run in parallel.
    """

    channels: int
    blocks: int
    vector: int
    num_warps: int
    parallel: int = 4096

    def tiles(self, spec: Spec) -> int:
        """Tiles per program, a power of two."""
        each = -(-spec.time // (self.blocks * self.vector))
        wanted = next_power_of_2(spec.batch * each * -(-spec.channels // self.channels) // self.parallel)
        return max(1, min(LONGEST_WALK // self.vector, wanted, next_power_of_2(each)))

    def chunks(self, spec: Spec) -> int:
        """Programs that share the time of a row."""
        return -(-spec.time // (self.tiles(spec) * self.blocks * self.vector))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a pass; the strides of its arrays select one of the two tiles.

    Attributes:
        walk: the tile if channels are contiguous.
        vectors: the tile if time is contiguous.
    """

    walk: Walk
    vectors: Vectors


# Architecture -> bytes of an element -> lanes, channels, unroll, warps, parallel.
FORWARD = {"sm_90": {2: (4, 256, 4, 8, 4096), 4: (4, 128, 8, 4, 16384)}}
BACKWARD = {"sm_90": {2: (2, 256, 8, 4, 1024), 4: (4, 128, 4, 4, 8192)}}
# Architecture -> bytes of an element -> channels, blocks, warps, parallel.
FORWARD_TIME = {"sm_90": {2: (32, 16, 4, 8192), 4: (32, 16, 4, 8192)}}
BACKWARD_TIME = {"sm_90": {2: (32, 16, 8, 4096), 4: (32, 16, 8, 4096)}}
FEWEST_CHANNELS = 16


def planned(spec: Spec, arch: Arch, which: Pass) -> Plan:
    """The plan of a pass."""
    if which == "fwd":
        return Plan(forward(spec, arch), forward_time(spec, arch))
    return Plan(backward(spec, arch), backward_time(spec, arch))


def forward(spec: Spec, arch: Arch) -> Walk:
    """The forward pass, channels contiguous."""
    return _walk(spec, arch, FORWARD)


def backward(spec: Spec, arch: Arch) -> Walk:
    """The backward pass, channels contiguous."""
    walk = _walk(spec, arch, BACKWARD)
    if spec.width > NARROW:
        # A filter, its sums and two windows are 4 W registers for each channel of a thread.
        return replace(walk, unroll=max(1, walk.unroll // 2))
    # Before Hopper the compiler needs more registers for the same tile with its activation, and spills some.
    if arch.shared_memory < HOPPER_SHARED:
        return replace(walk, unroll=max(1, walk.unroll // 2)) if spec.silu else walk
    # With a bias the compiler uses 136 registers by default: 3 programs per multiprocessor instead of 4.
    # With states, fp32 weights or a tile that D does not fill it would spill some of them.
    halves = BYTES[spec.x.dtype] == BYTES[spec.weight.dtype] == 2 and spec.channels % walk.channels == 0
    stateless = spec.initial_state is None and not spec.return_final_state
    if arch.name == "sm_90" and halves and stateless and spec.bias is not None:
        return replace(walk, max_registers=MOST_REGISTERS)
    return walk


def forward_time(spec: Spec, arch: Arch) -> Vectors:
    """The forward pass, time contiguous."""
    return _vectors(spec, arch, FORWARD_TIME)


def backward_time(spec: Spec, arch: Arch) -> Vectors:
    """The backward pass, time contiguous."""
    return _vectors(spec, arch, BACKWARD_TIME)


def _walk(spec: Spec, arch: Arch, tables: dict[str, dict[int, tuple[int, int, int, int, int]]]) -> Walk:
    lanes, channels, unroll, warps, parallel = of_arch(tables, arch)[BYTES[spec.x.dtype]]
    narrow = min(channels, max(FEWEST_CHANNELS, next_power_of_2(spec.channels)))
    return Walk(lanes * channels // narrow, narrow, unroll, warps_of(warps, arch), parallel=parallel)


def _vectors(spec: Spec, arch: Arch, tables: dict[str, dict[int, tuple[int, int, int, int]]]) -> Vectors:
    channels, blocks, warps, parallel = of_arch(tables, arch)[BYTES[spec.x.dtype]]
    return Vectors(channels, blocks, 16 // BYTES[spec.x.dtype], warps_of(warps, arch), parallel)
