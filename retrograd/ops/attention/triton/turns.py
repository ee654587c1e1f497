"""Sums in memory to which programs add in a fixed order, each when a counter says that it is its turn."""

import triton
import triton.language as tl

from .pairs import tiles_of_keys

MOST_LOOKS = tl.constexpr(2**24)  # seconds


@triton.jit
def wait_for_turn(turn_ptr, turn, IN_PTX: tl.constexpr):
    """Wait until a counter is `turn`; returns whether it is, after many looks.

    IN_PTX: as inline PTX, which is one instruction to the compiler: it pipelines only loops that have no loop in them.
    Triton's interpreter has no PTX.
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
def add_in_turn(
    turns,
    part,
    sequence,
    head,
    sizes,
    at,
    start,
    SCORES: tl.constexpr,
    TILES: tl.constexpr,
    IN_PTX: tl.constexpr,
):
    """Add what the tile of keys `at` has of dq to the tile of queries `start`, after all tiles of keys before it that
    see these queries; NaN if they never add theirs.
    """
    heads, D = sizes.heads, TILES.D
    first_seen, _first, _last, _high = tiles_of_keys(sequence, start, SCORES, TILES)
    turn = (at - first_seen) // TILES.keys
    turn_ptr = turns.turns_ptr + (sequence.batch * heads + head) * turns.tiles + turns.first_tile
    turn_ptr += start // TILES.queries
    i, column = start + tl.arange(0, TILES.queries), tl.arange(0, TILES.BLOCK_D)
    row = tl.cast(sequence.batch, tl.int64) * sizes.queries + sequence.first_q
    sum_ptr = turns.sum_ptr + row * heads * D + head * D
    sum_ptr += i.to(tl.int64)[:, None] * (heads * D) + column[None, :]
    mask = (i < sequence.queries)[:, None] & (column < D)[None, :]
    part = tl.where(wait_for_turn(turn_ptr, turn, IN_PTX), part, float("nan"))
    # What other programs have written is not in this multiprocessor's own cache.
    part += tl.load(sum_ptr, mask=mask, other=0.0, cache_modifier=".cg")
    tl.store(sum_ptr, part, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(turn_ptr, turn + 1, sem="release")
