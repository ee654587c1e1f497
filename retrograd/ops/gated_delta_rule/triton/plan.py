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
CHANNELS = 64  # of keys and of values in one product, at most
# A program that carries states has all channels of the keys; these are its channels of the values, at most.
CARRIED, CARRIED_OF_MANY, MANY = 64, 32, 128
# Operands of 4 bytes are split into two terms for the tensor cores, which needs registers.
SINGLE_STEPS, SINGLE_STEPS_OF_MANY = 32, 16
SINGLE_KEYS, SINGLE_VALUES = 32, 16
SINGLE_FEW = 64  # channels of keys for which 4 warps of a program that carries states have enough registers, at most
VALUES_OF_OLD = 32  # before sm_90
LEAST = 16  # the smallest dimension of a matrix product
# On sm_90 products of operands of 16 bits have as many columns, at least: ptxas 12.8 mistakes the place of a narrower
# right operand (`wrong_descriptors` in the tests).
COLUMNS = 64
DEEP_SHARED = 128 * KIB  # for a pipeline of several stages
HEADS = 16  # of a program that finishes the gradients of g and beta
ELEMENTS = 2048  # of q or k in a program that normalizes them


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile sizes of the kernels.

    Attributes:
        steps: of a block, C. A divisor of `op.BORDER`.
        keys: channels of keys in one product, where a block is computed by itself.
        values: channels of values in one product, there.
        width: all channels of keys, up to a power of two: those of a program that carries states.
        carried: channels of values of a program that carries states.
        num_warps: warps of a program that computes the results of a block.
        prepare_warps: those of `prepare`, which holds the inverse and the scores in registers.
        pair_warps: those of `pairs`, which holds three matrices of pairs of steps in registers.
        state_warps: those of `through_states`, which holds gradients of q and k in registers.
        carry_warps: those of a program that carries states.
        stages: pipeline stages, in a program that computes a block.
        carry_stages: pipeline stages over blocks, in a program that carries states.
        heads: of a program that finishes the gradients of g and beta.
        rows: of q or k in a program that normalizes them.
    """

    steps: int
    keys: int
    values: int
    width: int
    carried: int
    num_warps: int
    prepare_warps: int
    pair_warps: int
    state_warps: int
    carry_warps: int
    stages: int
    carry_stages: int
    heads: int
    rows: int

    def key_blocks(self, spec: Spec) -> int:
        """Products for all channels of keys."""
        return -(-spec.K // self.keys)

    def value_blocks(self, spec: Spec) -> int:
        """Products for all channels of values."""
        return -(-spec.V // self.values)


def planned(spec: Spec, arch: Arch, which: Pass) -> Tile:
    """The tile sizes of a call, the same for both passes."""
    single = BYTES[spec.v.dtype] == 4

    def at_most(size: int, most: int, least: int = LEAST) -> int:
        return max(least, min(next_power_of_2(size), most))

    hip = arch.backend == "hip"
    old = not hip and not arch.copies_tensors
    columns = COLUMNS if arch.name == "sm_90" and not single else LEAST
    width = at_most(spec.K, 256)
    many = width > MANY
    deep = not hip and not single and arch.shared_memory >= DEEP_SHARED
    # On sm_90 operands of 16 bits stay in shared memory, which leaves registers.
    few_warps = hip or (arch.name == "sm_90" and width <= (SINGLE_FEW if single else MANY))
    return Tile(
        steps=(SINGLE_STEPS_OF_MANY if many else SINGLE_STEPS) if single else STEPS,
        keys=at_most(spec.K, SINGLE_KEYS if single else CHANNELS),
        values=at_most(spec.V, SINGLE_VALUES if single else VALUES_OF_OLD if old else CHANNELS, columns),
        width=width,
        carried=at_most(spec.V, _carried(single, many, hip)),
        num_warps=4,
        prepare_warps=4,
        pair_warps=4 if single or hip else 8,
        state_warps=4 if hip else 8,
        carry_warps=4 if few_warps else 8,
        stages=2 if deep else 1,
        carry_stages=1 if old or not deep else 2 if many else 3,
        heads=HEADS,
        rows=ELEMENTS // width,
    )


def _carried(single: bool, many: bool, hip: bool) -> int:
    """Channels of values that one program carries, at most."""
    if single or (many and hip):
        return LEAST
    return CARRIED_OF_MANY if many else CARRIED
