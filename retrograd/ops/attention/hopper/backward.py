"""Attention, backward, on Hopper: dk, dv and dq in one walk over the queries. Symbols: ../README.md.

A program takes tiles of keys of a group, one after the other, and walks over the tiles of queries that see each, from
the last to the first, each of them in all heads of the group. Its warps are of three kinds:
    fetch   brings k and v, and tile after tile of q and dout with their rows' base and delta, by TMA
    differ  twice: five products, for half of the keys each
    add     twice: adds what the program has of dq to memory, when it is its turn
The tiles of keys that see a tile of queries add to its dq in their order. A program draws its tiles by tickets, and in
their order a tile comes behind those that it waits for. These are done, or programs work on them: no wait is in vain.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from retrograd.core.kernels.gluon import tma_load, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .by_keys import differ_by_keys
from .products import WARPS, several
from .steps import BATCH, FIRST_Q, GROUP, MORE, ROWS_AT, STEPS, step_of, walk_of
from .tickets import draw, give, let_go, parity_of, read, ring, slot_of, tickets_for, wait_for
from .tiles import ALIGNED, at_step, queries_seen, tile_of_keys, tiles_of_head, turn_of

FEW_REGISTERS = gl.constexpr(24)


@builtin
def tma_add(desc, coord, src, _semantic=None):
    """Add a block in shared memory to one in global memory."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


@gluon.jit
def read_turn(turn_ptr):
    """A counter, and with it what was written before it; all lanes read the same."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [turn_ptr.to(gl.int64, bitcast=True)], dtype=gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def see_writes(turn):
    """`turn`; what other programs wrote before it is there for copies by TMA, too."""
    return gl.inline_asm_elementwise(
        "fence.proxy.async.global; mov.b32 $0, $1;", "=r,r", [turn], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def pass_turn(turn_ptr, turn):
    """Write a counter once this thread's copies by TMA are in global memory."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred first;
        .reg .b32 lane;
        cp.async.bulk.wait_group 0;
        fence.proxy.async.global;
        bar.warp.sync -1;
        mov.u32 lane, %laneid;
        setp.eq.u32 first, lane, 0;
        @first st.release.gpu.global.s32 [$1], $2;
        mov.b32 $0, $2;
        }""",
        "=r,l,r", [turn_ptr.to(gl.int64, bitcast=True), turn], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def load_parts(array, batch, first, at, keys, group, full, memory):
    """Copy a tile of keys in parts, one for each group of warps or one for all."""
    ROWS: gl.constexpr = array.block_shape[len(array.block_shape) - 3]
    PARTS: gl.constexpr = memory.shape[0]
    for part in gl.static_range(PARTS):
        tma_load(array, at_step(array, batch, first, at + part * ROWS, keys, group), full, memory.index(part))


@gluon.jit
def fetch(
    arrays, memory, barriers, tickets, t, tiles, turns_ptr, places_ptr, sizes, SIDES: gl.constexpr,
    SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr, OF_VALUES: gl.constexpr,
):  # fmt: skip
    """Draw tickets, and copy to shared memory what the program reads for them; OF_VALUES: without v and delta."""
    q, k, v, dout, base, delta = arrays
    q_s, k_s, v_s, dout_s, base_s, delta_s = memory
    k_empty, v_empty, q_full, q_empty, dout_full, dout_empty = barriers
    OF_Q: gl.constexpr = q.block_type.nbytes + QUERIES * 4
    OF_DOUT: gl.constexpr = dout.block_type.nbytes + (0 if OF_VALUES else QUERIES * 4)
    OF_K: gl.constexpr = k_s.shape[0] * k.block_type.nbytes
    OF_V: gl.constexpr = 0 if OF_VALUES else v_s.shape[0] * v.block_type.nbytes
    n, turn = 0, 0
    while t < tiles * sizes[5]:
        place = tile_of_keys(t, tiles, places_ptr, sizes, SHARE, KEYS, QUERIES)
        batch, group, first_q, queries, first_k, keys, at, rows_at = place
        if keys > 0:
            low, steps = queries_seen(at, queries, keys, SIDES, KEYS, QUERIES)
            give(tickets, turn, (1, batch, group, first_q, queries, first_k, keys, at, rows_at, low, steps))
            for left in range(SHARE * steps, 0, -1):
                head, m = step_of(left, group, low, SHARE)
                row, start = batch * sizes[2] + head, first_q + m * QUERIES
                if places_ptr is not None:
                    copy = start % ALIGNED
                    row, start = row + copy * (sizes[5] * SHARE), start - copy
                where = at_step(q, batch, first_q, m * QUERIES, queries, head)
                slot = slot_of(n, STAGES[0])
                mbarrier.wait(q_empty.index(slot), parity_of(n, STAGES[0]) ^ 1)
                # k comes with the first q, and v with the first dout. A tile without steps waits for neither: groups
                # let go of a ticket when they are done with k and v, and `give` does not run two tickets ahead of them.
                if left == SHARE * steps:
                    mbarrier.wait(k_empty, (turn & 1) ^ 1)
                    mbarrier.expect(q_full.index(slot), OF_Q + OF_K)
                    load_parts(k, batch, first_k, at, keys, group, q_full.index(slot), k_s)
                else:
                    mbarrier.expect(q_full.index(slot), OF_Q)
                tma_load(q, where, q_full.index(slot), q_s.index(slot))
                tma_load(base, [row, start], q_full.index(slot), base_s.index(slot))
                slot = slot_of(n, STAGES[1])
                mbarrier.wait(dout_empty.index(slot), parity_of(n, STAGES[1]) ^ 1)
                if OF_VALUES:
                    mbarrier.expect(dout_full.index(slot), OF_DOUT)
                else:
                    if left == SHARE * steps:
                        mbarrier.wait(v_empty, (turn & 1) ^ 1)
                        mbarrier.expect(dout_full.index(slot), OF_DOUT + OF_V)
                        load_parts(v, batch, first_k, at, keys, group, dout_full.index(slot), v_s)
                    else:
                        mbarrier.expect(dout_full.index(slot), OF_DOUT)
                    tma_load(delta, [row, start], dout_full.index(slot), delta_s.index(slot))
                tma_load(dout, where, dout_full.index(slot), dout_s.index(slot))
                n += 1
            turn += 1
        # Where turns count, a ticket drawn early would keep others waiting: draw when the program is at the last steps.
        mbarrier.wait(q_empty.index(slot_of(n, STAGES[0])), parity_of(n, STAGES[0]) ^ 1)
        t = draw(turns_ptr)
    give(tickets, turn, (0,))


@gluon.jit
def add(
    W: gl.constexpr, dq_sum, turns_ptr, sums, tickets, tiles_q, SIDES: gl.constexpr, SHARE: gl.constexpr,
    KEYS: gl.constexpr, QUERIES: gl.constexpr,
):  # fmt: skip
    """Add what the program has of dq to sums, in turn; the first one is stored. Each of two such warps takes every
    other step: one may wait until its addition is in memory while the other one begins the next.
    """
    _, dq_s, _, _, dq_full, dq_empty = sums
    n, turn = 0, 0
    wait_for(tickets, 0)
    while read(tickets, turn, MORE) == 1:
        batch, group, first_q = read(tickets, turn, BATCH), read(tickets, turn, GROUP), read(tickets, turn, FIRST_Q)
        queries, keys, at, low = walk_of(tickets, turn)
        steps, rows_at = read(tickets, turn, STEPS), read(tickets, turn, ROWS_AT)
        let_go(tickets, turn)
        for left in range(SHARE * steps, 0, -1):
            if n % 2 == W:
                head, m = step_of(left, group, low, SHARE)
                own_turn_ptr = turns_ptr + 1 + rows_at + head * tiles_q + m
                own_turn = turn_of(at, m * QUERIES, queries, keys, SIDES, KEYS)
                where = at_step(dq_sum, batch, first_q, m * QUERIES, queries, head)
                mbarrier.wait(dq_full.index(W), parity_of(n, 2))
                while read_turn(own_turn_ptr) != own_turn:
                    pass
                own_turn = see_writes(own_turn)
                if own_turn == 0:
                    tma_store(dq_sum, where, dq_s.index(W))
                else:
                    tma_add(dq_sum, where, dq_s.index(W))
                tma.store_wait(0)
                mbarrier.arrive(dq_empty.index(W))
                pass_turn(own_turn_ptr, own_turn + 1)
            n += 1
        turn += 1
        wait_for(tickets, turn)


@gluon.jit
def differ(
    W: gl.constexpr, dk, dv, memory, barriers, sums, tickets, SIDES: gl.constexpr, FACTORS: gl.constexpr,
    SCALE: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr,
    AHEAD: gl.constexpr, LISTED: gl.constexpr,
):  # fmt: skip
    """What group W of two computes of dk, dv and dq of the program's tiles."""
    n, turn = 0, 0
    wait_for(tickets, 0)
    while read(tickets, turn, MORE) == 1:
        n = differ_by_keys(
            W, dk, dv, memory, barriers, sums, tickets, n, turn, SIDES, FACTORS, SCALE, SHARE, KEYS, QUERIES, STAGES,
            AHEAD, LISTED,
        )  # fmt: skip
        turn += 1
        wait_for(tickets, turn)


@gluon.jit(do_not_specialize=["sizes"])
def backward(
    q,
    k,
    v,
    dout,
    base,
    delta,
    places_ptr,
    runs_ptr,
    turns_ptr,
    dq_sum,
    dk,
    dv,
    sizes,
    SIDES: gl.constexpr,
    FACTORS: gl.constexpr,
    SCALE: gl.constexpr,
    SHARE: gl.constexpr,
    KEYS: gl.constexpr,
    QUERIES: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    AHEAD: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Tensor descriptors: q, k, v, dout, dk, dv; base and delta, as `rows` has stored them; dq_sum (batch, queries,
    heads, D), without its factor. turns, 0 at first: how many tickets are drawn; then how many tiles of keys have added
    to each tile of queries (heads of all rows, tiles of queries).

    sizes: Tq, Tk, heads, tiles of keys of a group, tiles of queries of a head, groups of all rows, groups of a section.
    places, runs, SIDES, FACTORS: as `forward`. SHARE: heads of a group; STAGES: of q, of dout. AHEAD: whether a
    step begins the products of queries and keys of the next one, which takes registers.
    """
    TYPE: gl.constexpr = q.dtype
    q_s = gl.allocate_shared_memory(TYPE, several(STAGES[0], q), q.layout)
    k_s = gl.allocate_shared_memory(TYPE, several(1, k), k.layout)
    v_s = gl.allocate_shared_memory(TYPE, several(2, v), v.layout)
    dout_s = gl.allocate_shared_memory(TYPE, several(STAGES[1], dout), dout.layout)
    base_s = gl.allocate_shared_memory(gl.float32, several(STAGES[0], base), base.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, several(STAGES[1], delta), delta.layout)
    ds_s = gl.allocate_shared_memory(TYPE, [2, KEYS, QUERIES], gl.NVMMASharedLayout(128, 16, rank=2))
    dq_s = gl.allocate_shared_memory(gl.float32, several(2, dq_sum), dq_sum.layout)
    k_empty, v_empty = ring(1, 2).index(0), ring(1, 2).index(0)
    q_full, q_empty = ring(STAGES[0], 1), ring(STAGES[0], 2)
    dout_full, dout_empty = ring(STAGES[1], 1), ring(STAGES[1], 2)
    ds_full, ds_empty = ring(2, 2), ring(2, 2)
    dq_full, dq_empty = ring(2, 2), ring(2, 1)
    tickets = tickets_for(4, 16)
    fence_async_shared()
    arrays = (q, k, v, dout, base, delta)
    memory = (q_s, k_s, v_s, dout_s, base_s, delta_s)
    barriers = (k_empty, v_empty, q_full, q_empty, dout_full, dout_empty)
    sums = (ds_s, dq_s, ds_full, ds_empty, dq_full, dq_empty)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(turns_ptr)
    tiles = tiles_of_head(runs_ptr, sizes[3], KEYS)
    gl.warp_specialize(
        [
            (differ, (0, dk, dv, memory, barriers, sums, tickets, SIDES, FACTORS, SCALE, SHARE, KEYS, QUERIES, STAGES,
                      AHEAD, places_ptr is not None)),
            (differ, (1, dk, dv, memory, barriers, sums, tickets, SIDES, FACTORS, SCALE, SHARE, KEYS, QUERIES, STAGES,
                      AHEAD, places_ptr is not None)),
            (fetch, (arrays, memory, barriers, tickets, t, tiles, turns_ptr, places_ptr, sizes, SIDES, SHARE, KEYS,
                     QUERIES, STAGES, False)),
            (add, (0, dq_sum, turns_ptr, sums, tickets, sizes[4], SIDES, SHARE, KEYS, QUERIES)),
            (add, (1, dq_sum, turns_ptr, sums, tickets, sizes[4], SIDES, SHARE, KEYS, QUERIES)),
        ],
        [WARPS, 1, 1, 1],
        [REGISTERS, FEW_REGISTERS, FEW_REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
