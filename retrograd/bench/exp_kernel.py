"""Exponentials at the rate of the unit that makes them."""

import triton
import triton.language as tl


@triton.jit
def exponentials(start_ptr, out_ptr, TILE: tl.constexpr, ROUNDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each program: ROUNDS times TILE exponentials, one after the other in registers; one number comes out."""
    program = tl.program_id(0)
    x = tl.load(start_ptr) + tl.arange(0, TILE).to(tl.float32) / TILE
    for _ in range(ROUNDS):
        x = tl.exp2(-x)
    tl.store(out_ptr + program, tl.sum(x, 0))
