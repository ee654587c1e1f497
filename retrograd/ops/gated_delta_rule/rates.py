"""The gradient of beta from its parts, where each channel of K has a decay of its own. Symbols: README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, outside, owner_of


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
    blocks = tl.cdiv(H, HEADS)
    slot = tl.program_id(0) // blocks
    head = tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    t = step + tl.arange(0, C)
    live = ((t >= 0) & (t < length))[:, None] & (head < H)[None, :]
    at = ((tl.cast(slot, tl.int64) * H + head) * (PARTS * C))[None, :] + tl.arange(0, C)[:, None]
    dbeta = tl.zeros([C, HEADS], tl.float32)
    for i in tl.static_range(PARTS):
        dbeta += tl.load(parts_ptr + at + i * C, mask=live, other=0.0)
    at = (row * call.T + first + t.to(tl.int64))[:, None] * H + head[None, :]
    tl.store(dbeta_ptr + at, dbeta.to(dbeta_ptr.dtype.element_ty), mask=live)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, C)
        at = cleared.to(tl.int64)[:, None] * H + head[None, :]
        zeros = tl.zeros([C, HEADS], dbeta_ptr.dtype.element_ty)
        tl.store(dbeta_ptr + at, zeros, mask=in_none[:, None] & (head < H)[None, :])
