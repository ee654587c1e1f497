"""SSD's step sizes, and the states that enter every block of steps: what goes in sequence. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous
from retrograd.core.kernels.sequences import Sequences, bounds_of, first_slot, owner_of, rows_at

from ..device import step_sizes, sums_of
from .blocks import add_product


@triton.jit(do_not_specialize=["dt", "call"])
def prepare(
    dt,
    A_ptr,
    dt_bias_ptr,
    cu_seqlens_ptr,
    delta_ptr,
    sums_ptr,
    call,
    H,
    Q: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """delta (slots, H, Q), 0 outside of the sequence; sums (slots, H, Q) of delta A log2(e) from a block's start."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    sequences = Sequences(cu_seqlens_ptr, call.T, call.sequences)
    blocks = tl.cdiv(H, BLOCK_H)
    slot = tl.program_id(0) // blocks
    head = tl.program_id(0) % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    number, step = owner_of(slot, sequences, Q)
    row, first, length = bounds_of(number, sequences)
    j = tl.arange(0, Q)
    t = step + j
    live = ((t >= 0) & (t < length))[:, None] & (head < H)[None, :]
    delta, log = step_sizes(dt, A_ptr, dt_bias_ptr, row, first, t, head, live, H, call, DT_SOFTPLUS)
    at = (tl.cast(slot, tl.int64) * H + head)[None, :] * Q + j[:, None]
    in_array = (head < H)[None, :] & (j < Q)[:, None]
    tl.store(delta_ptr + at, delta, mask=in_array)
    tl.store(sums_ptr + at, sums_of(log, length - step), mask=in_array)


@triton.jit(do_not_specialize=["drive", "vector", "lengths"])
def carry_states(
    drive,
    vector,
    delta_ptr,
    sums_ptr,
    start_ptr,
    cu_seqlens_ptr,
    entering_ptr,
    states_ptr,
    kept_ptr,
    last_ptr,
    both_ptr,
    lengths,
    H,
    heads_a_group,
    SIZES: tl.constexpr,
    OPERANDS: tl.constexpr,
    KEEP: tl.constexpr,
    BACK: tl.constexpr,
    FROM_KEPT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The state that enters every block: states (slots, H, P, N); one program for BLOCK_P channels, BLOCK_N states.

    Forward: driven by x and B, from the initial state; what enters every KEEP steps is also kept, and the last state is
    stored. FROM_KEPT: a program for every kept state, from it up to the next.
    BACK: the gradient of the state that leaves every block, driven by dy and C from the last step on,
    from the gradient of the final state; the last one is that of the initial state. With the states that enter the
    blocks, also the log-decay gradient of pairs of steps on either side of a block: both (slots, H, tiles).
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    P: tl.constexpr = SIZES.P
    N: tl.constexpr = SIZES.N
    Q: tl.constexpr = SIZES.Q
    BLOCK_P: tl.constexpr = SIZES.BLOCK_P
    BLOCK_N: tl.constexpr = SIZES.BLOCK_N
    DTYPE: tl.constexpr = OPERANDS.DTYPE
    P_BLOCKS: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    N_BLOCKS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    sequences = Sequences(cu_seqlens_ptr, lengths.T, lengths.sequences)
    tiles = H * (P_BLOCKS * N_BLOCKS)
    tile = tl.program_id(0) % tiles
    head = tile // (P_BLOCKS * N_BLOCKS)
    p = tile // N_BLOCKS % P_BLOCKS * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tile % N_BLOCKS * BLOCK_N + tl.arange(0, BLOCK_N)
    in_tile = (p < P)[:, None] & (n < N)[None, :]
    within = p.to(tl.int64)[:, None] * N + n[None, :] + tl.cast(head, tl.int64) * (P * N)
    size = tl.cast(H, tl.int64) * (P * N)
    part = tl.program_id(0) // tiles
    begin = 0
    if FROM_KEPT:
        number, begin = owner_of(part, sequences, KEEP)
    else:
        number = part
    row, first, length = bounds_of(number, sequences)
    slot = first_slot(number, first, sequences, Q)
    kept_slot = first_slot(number, first, sequences, KEEP)
    end = length
    if FROM_KEPT:
        end = tl.where(begin < 0, begin, tl.minimum(length, begin + KEEP))
    drive_at = rows_at(drive, row, first, head, SIZES.P_UNIT).pointer + p[None, :]
    vector_at = rows_at(vector, row, first, head // heads_a_group, SIZES.N_UNIT).pointer + n[None, :]
    j = tl.arange(0, Q)

    state = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    if FROM_KEPT:
        state = tl.load(start_ptr + part.to(tl.int64) * size + within, mask=in_tile & (begin < end), other=0.0).to(
            tl.float32
        )
    elif start_ptr is not None:
        state = tl.load(start_ptr + tl.cast(number, tl.int64) * size + within, mask=in_tile, other=0.0)
    blocks = tl.cdiv(tl.maximum(end - begin, 0), Q)
    for i in tl.range(blocks, num_stages=SIZES.STAGES):
        c = begin // Q + (blocks - 1 - i if BACK else i)
        at = states_ptr + (slot + c).to(tl.int64) * size + within
        tl.store(at, state.to(DTYPE), mask=in_tile)
        if kept_ptr is not None:
            if c % (KEEP // Q) == 0:
                kept = kept_ptr + (kept_slot + c // (KEEP // Q)).to(tl.int64) * size + within
                tl.store(kept, state.to(DTYPE), mask=in_tile)
        at = ((slot + c).to(tl.int64) * H + head) * Q
        sums = tl.load(sums_ptr + at + j)
        whole = tl.exp2(tl.load(sums_ptr + at + Q - 1))
        if both_ptr is not None:
            entering = tl.load(entering_ptr + (slot + c).to(tl.int64) * size + within, mask=in_tile, other=0.0)
            both = tl.sum(tl.sum(state * entering.to(tl.float32), axis=1), axis=0)
            tl.store(both_ptr + (slot + c).to(tl.int64) * tiles + tile, both * whole)
        t = c * Q + j
        live = (t < length)[:, None]
        steps = t.to(tl.int64)[:, None]
        u = tl.load(drive_at + steps * drive.step * SIZES.P_UNIT, mask=live & (p < P)[None, :], other=0.0)
        k = tl.load(vector_at + steps * vector.step * SIZES.N_UNIT, mask=live & (n < N)[None, :], other=0.0)
        u = u.to(tl.float32)
        if BACK:
            u *= tl.exp2(sums)[:, None]
        else:
            last = tl.load(sums_ptr + at + Q - 1)
            u *= (tl.exp2(last - sums) * tl.load(delta_ptr + at + j))[:, None]
        state = add_product(tl.trans(u.to(DTYPE)), k, state * whole, OPERANDS)
    if last_ptr is not None:
        tl.store(last_ptr + tl.cast(number, tl.int64) * size + within, state, mask=in_tile)
    if kept_ptr is not None and cu_seqlens_ptr is not None:
        # Slots that belong to no chunk: before the first sequence's, and up to the next sequence's.
        stop = first + length
        after = tl.where(
            number == lengths.sequences - 1, lengths.T // KEEP + lengths.sequences, stop // KEEP + number + 1
        )
        zeros = tl.zeros([BLOCK_P, BLOCK_N], DTYPE)
        for i in range(tl.where(number == 0, 0, kept_slot), kept_slot):
            tl.store(kept_ptr + tl.cast(i, tl.int64) * size + within, zeros, mask=in_tile)
        for i in range(kept_slot + tl.cdiv(length, KEEP), after):
            tl.store(kept_ptr + tl.cast(i, tl.int64) * size + within, zeros, mask=in_tile)
