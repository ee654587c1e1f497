"""`normalize_qk`: rows of q and k of norm 1, and gradients through that. Symbols: README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous


@triton.jit
def rows_of(x, call, K: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, UNIT: tl.constexpr):
    """A program's rows of q or k, (rows, columns); their offsets and mask in a dense array; and their steps."""
    c = tl.arange(0, BLOCK_K)
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group = r % call.G
    t = r // call.G % call.T
    batch = r // call.G // call.T
    mask = (r < call.rows)[:, None] & (c < K)[None, :]
    at = (batch * x.batch + t * x.step + group * x.head) * UNIT
    return x.pointer + at[:, None] + c[None, :], (r * K)[:, None] + c[None, :], mask, t


@triton.jit(do_not_specialize=["x", "call"])
def normalize(
    x,
    unit_ptr,
    call,
    K: tl.constexpr,
    SMALLEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """unit (B, T, G, K): rows of x divided by their norm."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    x_at, offsets, mask, _ = rows_of(x, call, K, ROWS, BLOCK_K, UNIT)
    row = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    row *= (1.0 / tl.sqrt_rn(tl.sum(row * row, axis=1) + SMALLEST))[:, None]
    tl.store(unit_ptr + offsets, row.to(unit_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["x", "call"])
def through_norm(
    x,
    dunit_ptr,
    cu_seqlens_ptr,
    dx_ptr,
    call,
    K: tl.constexpr,
    SMALLEST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dx (B, T, G, K), from x and the gradient of the rows of norm 1, in fp32."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    x_at, offsets, mask, t = rows_of(x, call, K, ROWS, BLOCK_K, UNIT)
    there = mask
    if cu_seqlens_ptr is not None:
        # Outside of all sequences x may be anything, and its gradient is 0.
        inside = (t >= tl.load(cu_seqlens_ptr)) & (t < tl.load(cu_seqlens_ptr + call.sequences))
        there = mask & inside[:, None]
    row = tl.load(x_at, mask=there, other=0.0).to(tl.float32)
    dunit = tl.load(dunit_ptr + offsets, mask=mask, other=0.0)
    scale = (1.0 / tl.sqrt_rn(tl.sum(row * row, axis=1) + SMALLEST))[:, None]
    row *= scale
    dx = scale * (dunit - row * tl.sum(row * dunit, axis=1)[:, None])
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
