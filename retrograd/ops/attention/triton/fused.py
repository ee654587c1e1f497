"""Attention, backward in one loop: a program owns a tile of keys, and adds its part of dq when it is its turn."""

import triton
import triton.language as tl

from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .backward import add_queries
from .pairs import clear_gaps, load_steps, seen, sequence_of, store_steps, tiles_of

MOST_LOOKS = tl.constexpr(2**24)  # seconds


@triton.jit
def wait_for_turn(turn_ptr, turn, IN_PTX: tl.constexpr):
    """Wait until a counter is `turn`; returns whether it is, after many looks.

    IN_PTX: in one instruction of the compiler's, which copies ahead only in loops without a loop in them. Triton's
    interpreter has no PTX.
    """
    if IN_PTX:
        seen_turn = tl.inline_asm_elementwise(
            """{
            .reg .pred waits, patient;
            .reg .s32 looks;
            mov.s32 looks, 0;
            again:
            ld.acquire.gpu.global.s32 $0, [$1];
            setp.ne.s32 waits, $0, $2;
            setp.lt.and.s32 patient, looks, $3, waits;
            add.s32 looks, looks, 1;
            @patient bra again;
            }""",
            "=&r,l,r,r", [turn_ptr, turn, MOST_LOOKS], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        return seen_turn == turn
    else:
        looks = 0
        while (tl.atomic_add(turn_ptr, 0, sem="acquire") != turn) & (looks < MOST_LOOKS):
            looks += 1
        return looks < MOST_LOOKS


@triton.jit
def add_in_turn(sum_ptr, turn_ptr, turn, values, mask, IN_PTX: tl.constexpr):
    """Add values to a sum in memory when `turn` programs have added theirs; NaN if they never do."""
    values = tl.where(wait_for_turn(turn_ptr, turn, IN_PTX), values, float("nan"))
    # What other programs have written is not in this multiprocessor's own cache.
    values += tl.load(sum_ptr, mask=mask, other=0.0, cache_modifier=".cg")
    tl.store(sum_ptr, values, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(turn_ptr, turn + 1, sem="release")


@triton.jit(do_not_specialize=["sizes"])
def fused_backward(
    q,
    k,
    v,
    bias,
    slopes,
    seed_ptr,
    cu_q_ptr,
    cu_k_ptr,
    base,
    dout,
    delta,
    dk,
    dv,
    dq_sum_ptr,
    turns_ptr,
    sizes,
    SIDES: tl.constexpr,
    FACTORS: tl.constexpr,
    SCALE: tl.constexpr,
    DROPPED: tl.constexpr,
    SHARE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BIAS: tl.constexpr,
    IN_PTX: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """dk and dv of a tile of keys; dq_sum (batch, queries, heads, D) fp32, without its factor, is 0 at first.

    turns (batch, heads, tiles of queries), 0 at first: how many tiles of keys have added to a tile of dq_sum. Tiles of
    keys take turns in their order. A program has a higher number than those that it waits for, so these have begun.

    DESCRIBED: q and dout are tensor descriptors.
    """
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    BLOCK_D: tl.constexpr = COLUMNS[2]
    BLOCK_V: tl.constexpr = COLUMNS[3]
    Tq, Tk, heads, _share, sequences = sizes
    groups = heads // SHARE
    tiles_k = tiles_of(cu_k_ptr, Tk, sequences, BLOCK_K)
    tiles_q = tiles_of(cu_q_ptr, Tq, sequences, BLOCK_Q)
    # The tiles of a head are far apart, so that few programs have to wait.
    rows = tl.num_programs(0) // tiles_k
    tile, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    batch, group = row // groups, row % groups
    number, first_k, keys, first_q, queries, at = sequence_of(
        cu_k_ptr, cu_q_ptr, tile, batch, Tk, Tq, sequences, BLOCK_K
    )
    first_tile = 0 if cu_q_ptr is None else first_q // BLOCK_Q + number  # of the sequence's queries
    clear_gaps(dk, cu_k_ptr, Tk, sequences, tile, group, COLUMNS[0], COLUMNS[2], BLOCK_K)
    clear_gaps(dv, cu_k_ptr, Tk, sequences, tile, group, COLUMNS[1], COLUMNS[3], BLOCK_K)

    j = at + tl.arange(0, BLOCK_K)
    column_d, column_v = tl.arange(0, COLUMNS[2]), tl.arange(0, COLUMNS[3])
    k_tile = load_steps(k, batch, first_k, j, keys, group, column_d, COLUMNS[0], COLUMNS[2])
    v_tile = load_steps(v, batch, first_k, j, keys, group, column_v, COLUMNS[1], COLUMNS[3])
    total_k = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    total_v = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    low, first, last, high = seen(at, keys, queries, SIDES[1], SIDES[0], BLOCK_K, BLOCK_Q)
    steps = tl.cdiv(tl.maximum(high - low, 0), BLOCK_Q)  # that each head of the group has
    for step in tl.range(0, steps * SHARE):
        head, start = group * SHARE + step // steps, low + step % steps * BLOCK_Q
        total_k, total_v, ds = add_queries(
            (total_k, total_v), k_tile, v_tile, q, dout, base, delta, bias, slopes, seed_ptr,
            (batch, number, first_q, first_k), (queries, keys), (head, batch * heads + head), at, start,
            (start < first) | (start >= last), SIDES, FACTORS, DROPPED, COLUMNS, BLOCK_Q, BLOCK_K, DESCRIBED, BIAS,
        )  # fmt: skip
        part = tl.dot(tl.trans(ds), k_tile, input_precision="ieee")
        first_seen, _first, _last, _high = seen(start, queries, keys, SIDES[0], SIDES[1], BLOCK_Q, BLOCK_K)
        i = start + tl.arange(0, BLOCK_Q)
        sums = dq_sum_ptr + (tl.cast(batch, tl.int64) * Tq + first_q) * heads * COLUMNS[0] + head * COLUMNS[0]
        sums += i.to(tl.int64)[:, None] * (heads * COLUMNS[0]) + column_d[None, :]
        turn_ptr = turns_ptr + (batch * heads + head) * tiles_q + first_tile + start // BLOCK_Q
        mask = (i < queries)[:, None] & (column_d < COLUMNS[0])[None, :]
        add_in_turn(sums, turn_ptr, (at - first_seen) // BLOCK_K, part, mask, IN_PTX)
    store_steps(dk, total_k * SCALE, batch, first_k, j, keys, group, column_d, COLUMNS[0])
    store_steps(dv, total_v, batch, first_k, j, keys, group, column_v, COLUMNS[1])


@triton.jit(do_not_specialize=["rows"])
def finish(
    dq_sum_ptr, dq, rows, heads, SCALE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """dq from the sums; `rows` are queries."""
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    tiles = tl.cdiv(rows, BLOCK)
    row = tl.program_id(0) // tiles
    batch, head = row // heads, row % heads
    i = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, BLOCK_D)
    sums = dq_sum_ptr + ((tl.cast(batch, tl.int64) * rows + i)[:, None] * heads + head) * D + column[None, :]
    total = tl.load(sums, mask=(i < rows)[:, None] & (column < D)[None, :], other=0.0)
    store_steps(dq, total * SCALE, batch, 0, i, rows, head, column, D)
