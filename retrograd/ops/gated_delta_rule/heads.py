"""A block of steps of some heads: where it is, and arrays (batch, time, heads) of numbers. Symbols: README.md."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from retrograd.core.kernels.sequences import bounds_of, outside, owner_of


class Block(NamedTuple):
    """Of a program: its slot, heads, first step, sequence (`row`, `first`, `length`), steps, and which are there."""

    slot: Any
    head: Any
    step: Any
    row: Any
    first: Any
    length: Any
    t: Any
    live: Any


@triton.jit
def block_of(sequences, H, C: tl.constexpr, HEADS: tl.constexpr):
    """The block of C steps and HEADS heads of a program."""
    blocks = tl.cdiv(H, HEADS)
    slot = tl.program_id(0) // blocks
    head = tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)
    number, step = owner_of(slot, sequences, C)
    row, first, length = bounds_of(number, sequences)
    t = step + tl.arange(0, C)
    live = ((t >= 0) & (t < length))[:, None] & (head < H)[None, :]
    return Block(slot, head, step, row, first, length, t, live)


@triton.jit
def put(ptr, x, block, sequences, H):
    """Store (C, HEADS) to (B, T, H); if sequences are packed, also zeros at the steps that belong to none."""
    at = (block.row * sequences.T + block.first + block.t.to(tl.int64))[:, None] * H + block.head[None, :]
    tl.store(ptr + at, x.to(ptr.dtype.element_ty), mask=block.live)
    if sequences.cu_seqlens is not None:
        steps, in_none = outside(block.slot, sequences, block.t.shape[0])
        at = steps.to(tl.int64)[:, None] * H + block.head[None, :]
        zeros = tl.zeros(x.shape, ptr.dtype.element_ty)
        tl.store(ptr + at, zeros, mask=in_none[:, None] & (block.head < H)[None, :])
