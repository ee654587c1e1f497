"""The plain recurrence for one step, on any GPU: `portable.update` in one launch. Symbols: ../../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous


@triton.jit
def row_of(x, row, head, c, there, SMALLEST: tl.constexpr, NORMALIZE_QK: tl.constexpr):
    """A row of q or k in fp32, of norm 1 with NORMALIZE_QK."""
    found = tl.load(x.pointer + row * x.batch + head * x.head + c, mask=there, other=0.0).to(tl.float32)
    if NORMALIZE_QK:
        found *= 1.0 / tl.sqrt_rn(tl.sum(found * found, axis=0) + SMALLEST)
    return found


@triton.jit(do_not_specialize=["q", "k", "v", "g", "beta"])
def update(
    q,
    k,
    v,
    g,
    beta,
    state_ptr,
    out_ptr,
    call,
    SIZES: tl.constexpr,
    SMALLEST: tl.constexpr,
    NORMALIZE_QK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes BLOCK_V channels of a head of a sequence, and overwrites their states."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    K: tl.constexpr = SIZES.K
    V: tl.constexpr = SIZES.V
    BLOCK_V: tl.constexpr = SIZES.BLOCK_V
    BLOCKS: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    H = call.H
    head = tl.program_id(0) // BLOCKS % H
    row = tl.cast(tl.program_id(0) // (BLOCKS * H), tl.int64)
    group = head // (H // call.G)
    p = tl.program_id(0) % BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
    c = tl.arange(0, SIZES.BLOCK_K)
    in_head, in_key = p < V, c < K
    keys = row_of(k, row, group, c, in_key, SMALLEST, NORMALIZE_QK)
    queries = row_of(q, row, group, c, in_key, SMALLEST, NORMALIZE_QK)
    values = tl.load(v.pointer + row * v.batch + head * v.head + p, mask=in_head, other=0.0).to(tl.float32)
    rate = tl.load(beta.pointer + row * beta.batch + head * beta.head).to(tl.float32)
    g_at = g.pointer + row * g.batch + head * g.head
    at = state_ptr + ((row * H + head) * V + p)[:, None] * K + c[None, :]
    there = in_head[:, None] & in_key[None, :]
    state = tl.load(at, mask=there, other=0.0)
    if SIZES.OF_CHANNELS:
        state *= tl.exp(tl.load(g_at + c, mask=in_key, other=0.0).to(tl.float32))[None, :]
    else:
        state *= tl.exp(tl.load(g_at).to(tl.float32))
    written = rate * (values - tl.sum(state * keys[None, :], axis=1))
    state += written[:, None] * keys[None, :]
    tl.store(at, state, mask=there)
    out = call.scale * tl.sum(state * queries[None, :], axis=1)
    tl.store(out_ptr + (row * H + head) * V + p, out.to(out_ptr.dtype.element_ty), mask=in_head)
