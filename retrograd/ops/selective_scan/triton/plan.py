"""Tile sizes: a pure function of the spec and the architecture.

The plan does not depend on the batch, the number of packed sequences or the number of steps: a sequence is computed by
the same binary, with its sums in the same order, in every batch and packing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from triton import next_power_of_2

from retrograd.core.arch import Arch

from ..op import Spec

# States that a thread holds: more of them mean fewer sums across threads, and more registers.
FORWARD_STATES = 16
BACKWARD_STATES = 8
# Channels of a program, at most. In the backward pass the partial sums of dB and dC are over as many.
FORWARD_CHANNELS = 32
BACKWARD_CHANNELS = 16
# More would leave a thread fewer than the 255 registers that it needs.
MOST_WARPS = 8
# Steps of an unrolled loop. In the backward pass their states and decays are in registers at once.
FORWARD_GROUP = 8
BACKWARD_GROUP = 4
MANY_STATES = 64


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of one program.

    Attributes:
        unit: channels that share B and C; a program's channels are in one unit.
        channels: channels of a program, a power of two.
        states: states of a channel, rounded up to a power of two.
        group: steps of an unrolled loop.
        num_warps: warps per program.
    """

    unit: int
    channels: int
    states: int
    group: int
    num_warps: int

    @property
    def max_registers(self) -> int:
        """The most registers per thread of an NVIDIA program of this size."""
        return min(255, 65_536 // (32 * self.num_warps))

    @property
    def blocks_a_unit(self) -> int:
        """Programs that share a unit of channels."""
        return -(-self.unit // self.channels) if self.unit else 0


def unit(spec: Spec) -> int:
    """Channels that share B and C."""
    return math.gcd(*(spec.channels // spec.groups(name) for name in ("B", "C")))


def forward(spec: Spec, arch: Arch) -> Tile:
    """The forward pass's tile: one warp, and as many channels as it has registers for."""
    states = next_power_of_2(spec.N)
    channels = max(1, min(FORWARD_CHANNELS, FORWARD_STATES * arch.warp_size // states))
    return Tile(unit(spec), min(channels, next_power_of_2(max(unit(spec), 1))), states, FORWARD_GROUP, num_warps=1)


def backward(spec: Spec, arch: Arch) -> Tile:
    """The backward pass's tile: few channels would mean many partial sums, so many states get more warps."""
    states = next_power_of_2(spec.N)
    channels = max(BACKWARD_CHANNELS, min(FORWARD_CHANNELS, BACKWARD_STATES * arch.warp_size // states))
    channels = min(channels, MOST_WARPS * BACKWARD_STATES * arch.warp_size // states)
    channels = min(channels, next_power_of_2(max(unit(spec), 1)))
    warps = max(1, states * channels // (BACKWARD_STATES * arch.warp_size))
    # Sums over more threads need more registers.
    many = states > (MANY_STATES if channels >= BACKWARD_CHANNELS else MANY_STATES // 2)
    group = BACKWARD_GROUP // 2 if many else BACKWARD_GROUP
    return Tile(unit(spec), channels, states, group, num_warps=warps)
