"""SSD, backward, the last kernel of both implementations: ddt, and sums for A, dt_bias and D. Symbols: README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, softplus, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, outside, owner_of

from .device import limited, load_raw


@triton.jit(do_not_specialize=["dt", "call"])
def finish(
    dt,
    A_ptr,
    dt_bias_ptr,
    cu_seqlens_ptr,
    delta_ptr,
    targets_ptr,
    sources_ptr,
    own_ptr,
    before_ptr,
    after_ptr,
    both_ptr,
    dots_ptr,
    ddt_ptr,
    dA_partial_ptr,
    ddt_bias_partial_ptr,
    dD_partial_ptr,
    call,
    H,
    SUMMANDS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """ddt (B, T, H), and a block's sums of dA, ddt_bias and, with `dots`, dD, (slots, H).

    `targets`, `sources` and `own` are what `pairs` makes, `before` and `after` what `through_states` makes of states
    and of their gradients, `both` what `carry_states` makes. Without `before`, it is in `targets`. `dots`: dy x.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    Q: tl.constexpr = SUMMANDS.Q
    BLOCK_H: tl.constexpr = SUMMANDS.HEADS
    SLICES: tl.constexpr = SUMMANDS.SLICES
    PARTS: tl.constexpr = SUMMANDS.PARTS
    TILES: tl.constexpr = SUMMANDS.TILES
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    blocks = tl.cdiv(H, BLOCK_H)
    slot = tl.program_id(0) // blocks
    head = tl.program_id(0) % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    number, step = owner_of(slot, sequences, Q)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, Q)
    t = step + j
    in_array = (j < Q)[:, None] & (head < H)[None, :]
    live = ((t >= 0) & (t < length))[:, None] & (head < H)[None, :]
    wide = tl.cast(slot, tl.int64)
    A = tl.load(A_ptr + head, mask=head < H, other=0.0)[None, :]
    raw = load_raw(dt, dt_bias_ptr, row, first, t, head, live, H)
    at = (wide * H + head)[None, :] * Q + j[:, None]
    delta = tl.load(delta_ptr + at, mask=in_array, other=0.0)
    # Sums over the steps before a step are made of their own terms: a running sum less its last term loses digits.
    in_block = in_array & (j > 0)[:, None]
    delta_before = tl.load(delta_ptr + at - 1, mask=in_block, other=0.0)
    suffixed = tl.zeros([Q, BLOCK_H], tl.float32)
    prefixed = tl.zeros([Q, BLOCK_H], tl.float32)
    dfactor = tl.zeros([Q, BLOCK_H], tl.float32)
    dots = tl.zeros([Q, BLOCK_H], tl.float32)
    both = tl.zeros([BLOCK_H], tl.float32)
    for i in range(SLICES):  # not unrolled: up to 64 loads ahead would not fit into registers
        at = ((wide * H + head) * SLICES + i)[None, :] * Q + j[:, None]
        later = tl.load(sources_ptr + at, mask=in_array, other=0.0)
        suffixed += tl.load(targets_ptr + at, mask=in_array, other=0.0) - delta * later
        dfactor += tl.load(own_ptr + at, mask=in_array, other=0.0) + later
        if dots_ptr is not None:
            dots += tl.load(dots_ptr + at, mask=in_array, other=0.0)
        for b in tl.static_range(PARTS):
            at = (((wide * H + head) * SLICES + i) * PARTS + b)[None, :] * Q + j[:, None]
            after = tl.load(after_ptr + at, mask=in_array, other=0.0)
            if before_ptr is not None:
                suffixed += tl.load(before_ptr + at, mask=in_array, other=0.0)
            prefixed += delta_before * tl.load(after_ptr + at - 1, mask=in_block, other=0.0)
            dfactor += after
    for i in range(TILES):
        both += tl.load(both_ptr + (wide * H + head) * TILES + i, mask=head < H, other=0.0)
    dlog = tl.cumsum(suffixed, axis=0, reverse=True) + tl.cumsum(prefixed, axis=0) + both[None, :]
    dA = tl.sum(tl.where(live, dlog * delta, 0.0), axis=0)
    tl.store(dA_partial_ptr + wide * H + head, dA, mask=head < H)
    unlimited = raw
    ddt = dfactor + dlog * A
    if SUMMANDS.DT_SOFTPLUS:
        unlimited = softplus(raw)
        ddt *= tl.where(raw > -80.0, 1.0 / (1.0 + tl.exp(-raw)), tl.exp(raw))
    ddt = tl.where(live & (unlimited == limited(unlimited, call)), ddt, 0.0)
    out = ddt_ptr + (row * call.T + first) * H + t.to(tl.int64)[:, None] * H + head[None, :]
    tl.store(out, ddt.to(ddt_ptr.dtype.element_ty), mask=live)
    if ddt_bias_partial_ptr is not None:
        tl.store(ddt_bias_partial_ptr + wide * H + head, tl.sum(ddt, axis=0), mask=head < H)
    if dD_partial_ptr is not None:
        tl.store(dD_partial_ptr + wide * H + head, tl.sum(tl.where(live, dots, 0.0), axis=0), mask=head < H)
    if cu_seqlens_ptr is not None:
        cleared, in_none = outside(slot, sequences, Q)
        out = ddt_ptr + cleared.to(tl.int64)[:, None] * H + head[None, :]
        zeros = tl.zeros([Q, BLOCK_H], ddt_ptr.dtype.element_ty)
        tl.store(out, zeros, mask=in_none[:, None] & (head < H)[None, :])
