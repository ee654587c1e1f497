"""The gradient of beta from its parts, where each channel of K has a decay of its own. Symbols: README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences

from .heads import block_of, put


@triton.jit(do_not_specialize=["call"])
def finish_rates(
    parts_ptr,
    cu_seqlens_ptr,
    dbeta_ptr,
    call,
    C: tl.constexpr,
    PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dbeta (B, T, H), from parts (slots, H, PARTS, C); a program takes a block of steps and HEADS heads."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    H = call.H
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    block = block_of(sequences, H, C, HEADS)
    at = ((tl.cast(block.slot, tl.int64) * H + block.head) * (PARTS * C))[None, :] + tl.arange(0, C)[:, None]
    dbeta = tl.zeros([C, HEADS], tl.float32)
    for i in tl.static_range(PARTS):
        dbeta += tl.load(parts_ptr + at + i * C, mask=block.live, other=0.0)
    put(dbeta_ptr, dbeta, block, sequences, H)
