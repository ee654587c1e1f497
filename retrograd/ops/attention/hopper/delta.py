"""Attention, backward, on Hopper: what comes before and after the walk, for each query. Symbols: ../README.md."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import LOG2E, let_next_start, pairwise_sum, wait_for_previous

from ..device import load_row, load_steps, store_steps
from .schedule import bound_of, sequences_of, turns_of
from .wgmma import SUMS_OF_ROW


@triton.jit
def steps_of(sizes, BLOCK: tl.constexpr, FLAT: tl.constexpr):
    """Of a program: batch, head, tile, steps, and where their numbers are in base and delta.

    These have a row for each head of each row of the batch; with FLAT, for ids, a row for each head, with the steps of
    all rows of the batch.
    """
    T, heads, pitch = sizes.queries, sizes.heads, sizes.pitch
    tiles = tl.cdiv(T, BLOCK)
    # Heads are side by side in memory, and so are the programs that read them.
    head, tile = tl.program_id(0) % heads, tl.program_id(0) // heads
    batch, tile = tile // tiles, tile % tiles
    i = tile * BLOCK + tl.arange(0, BLOCK)
    if FLAT:
        return batch, head, tile, i, head.to(tl.int64) * pitch + batch * T + i
    else:
        return batch, head, tile, i, (batch * heads + head).to(tl.int64) * pitch + i


@triton.jit
def positions_among_keys(i, cu_q_ptr, cu_k_ptr, sizes):
    """Of steps: whether each is of a sequence; its position among the keys of that; how many of these there are."""
    T, Tk, sequences = sizes.queries, sizes.keys, sizes.sequences
    if cu_q_ptr is None:
        return i < T, i + Tk - T, Tk
    else:
        number = sequences_of(i, cu_q_ptr, sequences, T, None)
        first, end = bound_of(cu_q_ptr, number, T), bound_of(cu_q_ptr, number + 1, T)
        keys = bound_of(cu_k_ptr, number + 1, Tk) - bound_of(cu_k_ptr, number, Tk)
        return (i >= first) & (i < end), i - end + keys, keys


@triton.jit
def store_copies(pointer, numbers, at, i, T, distance, COPIES: tl.constexpr):
    """Store numbers of steps i of T; in each copy they are one element before those of the copy before."""
    for copy in tl.static_range(COPIES):
        address = pointer + tl.cast(distance, tl.int64) * copy + at - copy
        # Writes before a row land in the padding of the row before it, which is not read.
        tl.store(address, numbers, mask=(i < T) & (at >= copy))


@triton.jit(do_not_specialize=["sizes"])
def deltas(
    out,
    dout,
    lse,
    dlse,
    sinks,
    ids,
    cu_q_ptr,
    cu_k_ptr,
    base_ptr,
    delta_ptr,
    dsinks_ptr,
    sizes,
    WINDOW: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK: tl.constexpr,
    FLAT: tl.constexpr,
    COPIES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """delta; and base, minus lse in powers of two, -inf for steps of no sequence and those that see no key:
    probabilities are then 0.

    dsinks (rows, tiles, heads): parts of the gradient of sinks.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    T, heads, distance = sizes.queries, sizes.heads, sizes.distance
    batch, head, tile, i, at = steps_of(sizes, BLOCK, FLAT)
    column = tl.arange(0, BLOCK_V)
    result = load_steps(out, batch, 0, i, T, head, column, V, BLOCK_V).to(tl.float32)
    incoming = load_steps(dout, batch, 0, i, T, head, column, V, BLOCK_V).to(tl.float32)
    delta = pairwise_sum(result * incoming)
    if dlse.pointer is not None:
        delta -= load_row(dlse, batch, 0, i, T, head)
    logarithm = load_row(lse, batch, 0, i, T, head)
    inside, position, keys = positions_among_keys(i, cu_q_ptr, cu_k_ptr, sizes)
    live = inside & (logarithm != float("-inf"))
    if ids.pointer is not None:
        own = ids.pointer + batch.to(tl.int64) * ids.batch + i.to(tl.int64) * ids.step
        live &= tl.load(own, mask=i < T, other=-1) >= 0
    sees = live & (keys > 0)
    if WINDOW.after is not None:
        sees &= position + WINDOW.after >= 0
    base = tl.where(sees, -logarithm * LOG2E, float("-inf"))
    store_copies(base_ptr, base, at, i, T, distance, COPIES)
    store_copies(delta_ptr, tl.where(live, delta, 0.0), at, i, T, distance, COPIES)
    if dsinks_ptr is not None:
        sink = tl.load(sinks.pointer + head * sinks.head)
        part = tl.where(live, tl.exp(sink - logarithm) * delta, 0.0)
        tl.store(dsinks_ptr + (batch * tl.cdiv(T, BLOCK) + tile) * heads + head, -tl.sum(part, axis=0))


@triton.jit
def wait_for_turns(
    turns_ptr,
    batch,
    head,
    tile,
    sizes,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Wait until all tiles of keys have added to dq of the queries of a program."""
    T = sizes.queries
    PARTS: tl.constexpr = QUERIES // BLOCK
    needed = turns_of(tile // PARTS * QUERIES, T, sizes.keys, WINDOW, QUERIES, KEYS)
    own_turn_ptr = turns_ptr + 1 + (batch * sizes.heads + head) * tl.cdiv(T, QUERIES) * PARTS + tile
    while tl.atomic_add(own_turn_ptr, 0, sem="acquire") != needed:
        pass


@triton.jit(do_not_specialize=["sizes"])
def round_dq(
    dq_sum,
    base_ptr,
    turns_ptr,
    dq,
    sizes,
    SCALE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
    FLAT: tl.constexpr,
    WINDOW: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dq from its sums; zeros where base is -inf.

    turns: of the walk, or None if its tiles are listed. Programs begin where that has no more tiles, before its end.
    """
    T = sizes.queries
    batch, head, tile, i, at = steps_of(sizes, BLOCK, FLAT)
    if turns_ptr is None:
        wait_for_previous(OVERLAP)
    elif tl.program_id(0) == tl.num_programs(0) - 1:
        wait_for_previous(OVERLAP)  # so that the next kernel does not start before the walk has ended
    else:
        wait_for_turns(turns_ptr, batch, head, tile, sizes, WINDOW, BLOCK, QUERIES, KEYS)
    let_next_start(OVERLAP)
    column = tl.arange(0, BLOCK_D)
    PADDED: tl.constexpr = (D + SUMS_OF_ROW - 1) // SUMS_OF_ROW * SUMS_OF_ROW
    live = tl.load(base_ptr + at, mask=i < T, other=float("-inf")) != float("-inf")
    total = load_steps(dq_sum, batch, 0, tl.where(live, i, T), T, head, column, PADDED, BLOCK_D)
    # The order of columns before `wgmma.in_order_of_sums`.
    total = tl.reshape(total, (BLOCK, BLOCK_D // SUMS_OF_ROW, 2, 4, 4))
    total = tl.reshape(tl.permute(total, (0, 1, 3, 2, 4)), (BLOCK, BLOCK_D))
    store_steps(dq, total * SCALE, batch, 0, i, T, head, column, D)
