"""What the Triton kernels are compiled for. Symbols: ../README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Sizes of a block of C steps.

    BLOCK_K, BLOCK_V: channels of keys and of values that a program, or a product, has. K_UNIT, V_UNIT: the units of
    strides, in elements, of arrays with K or V columns. STAGES: of the pipeline.
    """

    K: int
    V: int
    C: int
    BLOCK_K: int
    BLOCK_V: int
    K_UNIT: int
    V_UNIT: int
    STAGES: int


class Operands(NamedTuple):
    """Of matrix products: their dtype; whether tensor cores have tf32; whether operands of fp32 are two terms of it."""

    DTYPE: Any
    TF32: bool
    SPLIT: bool


class Summands(NamedTuple):
    """How many sums `finish` adds for a head and a slot of C steps: V_BLOCKS times K_BLOCKS. HEADS: of a program."""

    C: int
    V_BLOCKS: int
    K_BLOCKS: int
    HEADS: int
