"""Tile sizes of the Triton kernels: a pure function of the spec and the architecture.

Nothing here depends on the batch, the number of packed sequences or the number of steps: a sequence is computed by the
same binary, with its sums in the same order, in every batch and packed row.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton import next_power_of_2

from retrograd.core.arch import KIB, Arch
from retrograd.core.dtypes import BYTES
from retrograd.core.spec import Pass

from ..op import Spec

STEPS = 64  # of a block
CHANNELS = 64  # of a slice, at most
STATES = 128  # of one product, at most
CARRIED = 64  # states of a channel that one program carries, at most
# Operands of 4 bytes are split into two terms for the tensor cores, which needs registers.
SINGLE_STEPS = 32
SINGLE_CHANNELS = 32
SINGLE_STATES = 32
LEAST = 16  # the smallest dimension of a matrix product
DEEP_SHARED = 128 * KIB  # for a pipeline of three stages
HEADS = 16  # over which a program sums dB and dC, at most
PREPARED_HEADS = 16  # of a program that prepares step sizes, or finishes their gradients


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile sizes of the kernels.

    Attributes:
        steps: of a block, Q.
        channels: of a slice of a head.
        states: of a channel, in one product.
        carried: states of a channel that one program carries.
        num_warps: warps of a program that computes a block.
        pair_warps: those of `pairs`, which holds two matrices of pairs of steps in registers.
        stages: pipeline stages over slices, in a program that computes a block.
        carry_stages: pipeline stages over blocks, in a program that carries states.
        heads: heads of a group in one program, over which it sums dB and dC, at most.
        prepared_heads: of a program that prepares step sizes, or finishes their gradients.
    """

    steps: int
    channels: int
    states: int
    carried: int
    num_warps: int
    pair_warps: int
    stages: int
    carry_stages: int
    heads: int = HEADS
    prepared_heads: int = PREPARED_HEADS

    def slices(self, spec: Spec) -> int:
        """Slices of a head."""
        return -(-spec.P // self.channels)

    def state_blocks(self, spec: Spec) -> int:
        """Products for all states of a channel."""
        return -(-spec.N // self.states)

    def tiles(self, spec: Spec) -> int:
        """Programs that carry the state of a head."""
        return self.slices(spec) * -(-spec.N // self.carried)

    def heads_of(self, spec: Spec) -> int:
        """Heads of a group in one program."""
        return max(1, min(self.heads, spec.heads // spec.groups))

    def head_blocks(self, spec: Spec) -> int:
        """Programs of a block of steps."""
        return spec.groups * -(-(spec.heads // spec.groups) // self.heads_of(spec))


def planned(spec: Spec, arch: Arch, which: Pass) -> Tile:
    """The tile sizes of a call, the same for both passes."""
    single = BYTES[spec.operand_dtype] == 4

    def at_most(size: int, most: int) -> int:
        return max(LEAST, min(next_power_of_2(size), most))

    # 4 warps are faster where they have enough registers.
    few = arch.name in ("sm_80", "sm_90") and spec.z is None and spec.N <= STATES
    return Tile(
        steps=SINGLE_STEPS if single else STEPS,
        channels=at_most(spec.P, SINGLE_CHANNELS if single else CHANNELS),
        states=at_most(spec.N, SINGLE_STATES if single else STATES),
        carried=at_most(spec.N, SINGLE_STATES if single else CARRIED),
        num_warps=4 if single or arch.backend == "hip" or few else 8,
        pair_warps=4 if single or arch.backend == "hip" else 8,
        stages=1 if single or arch.backend == "hip" else 3 if arch.shared_memory >= DEEP_SHARED else 2,
        carry_stages=2,
    )
