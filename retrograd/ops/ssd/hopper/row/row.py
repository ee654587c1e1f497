"""One row of SSD from the state at its block's start, with the bits of `walk`. Symbols: ../../README.md.

The products are those of `walk`, transposed as there, with one target instead of a block of them:

    scores = k q, weighted          (source)      k, q = B, C
    y      = h q 2^s + u^T weighted scores        (channel)      u = x
    h'     = 2^e h + (2^(e - s) delta u)^T k      (channel, state), where the step is the last of its block

A product has 16 columns at least; here all are the same. Sums of a product are over the same numbers in the same order
as in `walk`, for any number of its columns.
"""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, rounded_product, wait_for_previous
from retrograd.core.kernels.warpgroups import column_order

COLUMNS = tl.constexpr(16)
CHANNELS = tl.constexpr(64)  # of a program
VECTORS = tl.constexpr(4)  # of a block: 2^(e - s) delta; s; 2^s; delta


@triton.jit
def columns_of(ptr, n):
    """A vector as a matrix of equal columns."""
    return tl.broadcast_to(tl.load(ptr + n)[:, None], [n.shape[0], COLUMNS])


@triton.jit(do_not_specialize=["C", "D"])
def row(
    window_x_ptr,
    window_B_ptr,
    C,
    D,
    steps_ptr,
    vectors_ptr,
    state_ptr,
    out_ptr,
    groups,
    SIZES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes 64 channels of a head of a sequence. `state` is overwritten where a block ends."""
    P: tl.constexpr = SIZES.P
    N: tl.constexpr = SIZES.N
    Q: tl.constexpr = SIZES.Q
    STATES: tl.constexpr = SIZES.STATES
    H = groups.H
    slices = P // CHANNELS
    head = tl.program_id(0) // slices % H
    sequence = tl.cast(tl.program_id(0) // (H * slices), tl.int64)
    group = head // (H // groups.G)
    p = tl.program_id(0) % slices * CHANNELS + tl.arange(0, CHANNELS)
    state_at = state_ptr + ((sequence * H + head) * P + p)[:, None] * N + tl.arange(0, STATES)[None, :]
    # Most of the bytes. The kernels since the one that wrote it have waited for each other.
    state = tl.load(state_at)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = tl.load(steps_ptr + sequence)
    j = tl.arange(0, Q)
    past = j <= t
    x_at = window_x_ptr + (sequence * Q * H + head) * P + p
    u = tl.load(x_at[None, :] + (j * (H * P))[:, None], mask=past[:, None], other=0.0)
    newest = tl.load(x_at + t * (H * P)).to(tl.float32)
    B_at = window_B_ptr + (sequence * Q * groups.G + group) * N
    C_at = C.pointer + sequence * C.batch + group * C.head
    vectors_at = vectors_ptr + (sequence * H + head) * (VECTORS * Q)
    at_j = vectors_at + column_order(j, Q)
    at_t = vectors_at + column_order(t, Q)

    skip = tl.zeros([CHANNELS], tl.float32)
    if D.pointer is not None:
        skip = tl.load(D.pointer + head * D.head + p * D.channel)

    grow = tl.load(at_t + 2 * Q)
    scores = tl.zeros([Q, COLUMNS], tl.float32)
    carried = tl.dot(state.to(u.dtype), columns_of(C_at, tl.arange(0, STATES))) * grow
    for half in tl.static_range(N // STATES):
        n = half * STATES + tl.arange(0, STATES)
        k = tl.load(B_at + (j * (groups.G * N))[:, None] + n[None, :], mask=past[:, None], other=0.0)
        scores = tl.dot(k, columns_of(C_at, n), scores)
    weights = tl.exp2(tl.load(at_t + Q) - tl.load(at_j + Q)) * tl.load(at_j + 3 * Q)
    weighted = tl.where(past[:, None], scores * weights[:, None], 0.0).to(u.dtype)
    out = tl.dot(tl.trans(u), weighted, carried)
    out = tl.fma(newest[:, None], skip[:, None], out)
    if N > STATES:
        state = tl.load(state_at + STATES)
        product = tl.dot(state.to(u.dtype), columns_of(C_at, STATES + tl.arange(0, STATES)))
        out += rounded_product(product, grow)  # in `walk` it comes through memory
    first = (tl.arange(0, COLUMNS) == 0)[None, :] & (p < P)[:, None]
    out_at = out_ptr + ((sequence * H + head) * P + p)[:, None] + tl.zeros([1, COLUMNS], tl.int32)
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=first)
    if t == Q - 1:
        decay = tl.load(vectors_at + 3 * Q - 1)
        driven = tl.trans((u.to(tl.float32) * tl.load(at_j)[:, None]).to(u.dtype))
        for half in tl.static_range(N // STATES):
            n = half * STATES + tl.arange(0, STATES)
            k = tl.load(B_at + (j * (groups.G * N))[:, None] + n[None, :])
            # Read again: kept until here it would take registers in every step.
            state = tl.load(state_at + half * STATES)
            tl.store(state_at + half * STATES, tl.dot(driven, k, state * decay))
