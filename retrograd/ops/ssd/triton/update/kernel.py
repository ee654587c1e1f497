"""The plain recurrence of SSD for one step, on any GPU: `portable.update` in one launch. Symbols: ../../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, silu, softplus, wait_for_previous

from ...device import limited


@triton.jit(do_not_specialize=["x", "dt", "B", "C", "D", "z"])
def update(
    x,
    dt,
    A_ptr,
    B,
    C,
    D,
    z,
    dt_bias_ptr,
    state_ptr,
    out_ptr,
    groups,
    limits,
    SIZES: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes BLOCK_P channels of a head of a sequence, and overwrites their states."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P: tl.constexpr = SIZES.P
    N: tl.constexpr = SIZES.N
    BLOCK_P: tl.constexpr = SIZES.BLOCK_P
    BLOCKS: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    H = groups.H
    head = tl.program_id(0) // BLOCKS % H
    row = tl.cast(tl.program_id(0) // (BLOCKS * H), tl.int64)
    group = head // (H // groups.G)
    p = tl.program_id(0) % BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, SIZES.BLOCK_N)
    in_head, in_state = p < P, n < N
    delta = tl.load(dt.pointer + row * dt.batch + head * dt.head).to(tl.float32)
    if dt_bias_ptr is not None:
        delta += tl.load(dt_bias_ptr + head)
    if DT_SOFTPLUS:
        delta = softplus(delta)
    delta = limited(delta, limits)
    u = tl.load(x.pointer + row * x.batch + head * x.head + p, mask=in_head, other=0.0).to(tl.float32)
    k = tl.load(B.pointer + row * B.batch + group * B.head + n, mask=in_state, other=0.0).to(tl.float32)
    q = tl.load(C.pointer + row * C.batch + group * C.head + n, mask=in_state, other=0.0).to(tl.float32)
    at = state_ptr + ((row * H + head) * P + p)[:, None] * N + n[None, :]
    there = in_head[:, None] & in_state[None, :]
    state = tl.load(at, mask=there, other=0.0)
    state = tl.exp(delta * tl.load(A_ptr + head)) * state + (delta * u)[:, None] * k[None, :]
    tl.store(at, state, mask=there)
    out = tl.sum(state * q[None, :], axis=1)
    if D.pointer is not None:
        out += tl.load(D.pointer + head * D.head + p * D.channel, mask=in_head, other=0.0) * u
    if z.pointer is not None:
        gate = tl.load(z.pointer + row * z.batch + head * z.head + p, mask=in_head, other=0.0)
        out *= silu(gate.to(tl.float32))
    tl.store(out_ptr + (row * H + head) * P + p, out.to(out_ptr.dtype.element_ty), mask=in_head)
