"""What the Triton kernels of SSD are compiled for. Symbols: ../README.md."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Sizes of a block of Q steps.

    BLOCK_P, BLOCK_N: channels and states of one product. P_UNIT, N_UNIT: the units of strides, in elements, of arrays
    with P or N columns. HEADS: heads of a program, at most. STAGES: of the pipeline.
    """

    P: int
    N: int
    Q: int
    BLOCK_P: int
    BLOCK_N: int
    P_UNIT: int
    N_UNIT: int
    HEADS: int
    STAGES: int


class Operands(NamedTuple):
    """Of matrix products: their dtype, and whether those of fp32 are split into two terms of tf32."""

    DTYPE: Any
    SPLIT: bool
