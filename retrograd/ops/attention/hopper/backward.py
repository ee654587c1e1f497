"""Attention, backward, on Hopper: dk, dv and dq in one walk over the queries. Symbols: ../README.md.

A program takes tiles of keys of a group, one after the other, and walks over the tiles of queries that see each, from
the last to the first, each of them in all heads of the group. Its warps are of three kinds:
    fetch   brings k and v, and tile after tile of q and dout with their rows' base and delta, by TMA
    differ  twice, for one half of the keys each: five products, of which dq takes both halves' ds from shared memory
    add     adds what the program has of dq to memory, when it is its turn
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
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import tma_load, tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .forward import matrix, several
from .tickets import draw, give, let_go, read, ring, tickets_for, wait_for
from .tiles import at_step, queries_seen, tile_of_keys, tiles_of_head, turn_of

WARPS = gl.constexpr(4)
# Numbers of a ticket: whether there is a tile; what `tile_of_keys` tells of it; what `queries_seen` does.
MORE, BATCH, GROUP, FIRST_Q, QUERIES_OF, FIRST_K, KEYS_OF, AT, ROWS_AT, LOW, STEPS = (
    gl.constexpr(i) for i in range(11)
)
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
def step_of(n, group, low, steps, SHARE: gl.constexpr):
    """Step n of a walk: the head, and the tile of its queries.

    Heads come first: a program that went head by head would wait, at each head's last queries, for all those before it.
    """
    return group * SHARE + n % SHARE, low + steps - 1 - n // SHARE


@gluon.jit
def fetch_tile(
    arrays, memory, barriers, tickets, done, turn, t, tiles, places_ptr, sizes, SIDES: gl.constexpr,
    SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy to shared memory what tile number t of all programs needs; returns the steps that are `done` then."""
    q, k, v, dout, base, delta = arrays
    q_s, k_s, v_s, dout_s, base_s, delta_s, _, _ = memory
    kv_full, kv_empty, q_full, q_empty, dout_full, dout_empty, _, _ = barriers
    place = tile_of_keys(t, tiles, places_ptr, sizes, SHARE, KEYS, QUERIES)
    batch, group, first_q, queries, first_k, keys, at, rows_at = place
    low, steps = queries_seen(at, queries, keys, SIDES, KEYS, QUERIES)
    give(tickets, turn, (1, batch, group, first_q, queries, first_k, keys, at, rows_at, low, steps))
    mbarrier.wait(kv_empty, (turn & 1) ^ 1)
    mbarrier.expect(kv_full, k.block_type.nbytes + v.block_type.nbytes)
    tma_load(k, at_step(k, batch, first_k, at, keys, group), kv_full, k_s)
    tma_load(v, at_step(v, batch, first_k, at, keys, group), kv_full, v_s)
    for n in range(SHARE * steps):
        head, m = step_of(n, group, low, steps, SHARE)
        slot, free = (done + n) % STAGES, (((done + n) // STAGES) & 1) ^ 1
        row, start = batch * sizes[2] + head, first_q + m * QUERIES
        where = at_step(q, batch, first_q, m * QUERIES, queries, head)
        mbarrier.wait(q_empty.index(slot), free)
        mbarrier.expect(q_full.index(slot), q.block_type.nbytes + QUERIES * 4)
        tma_load(q, where, q_full.index(slot), q_s.index(slot))
        tma_load(base, [row, start], q_full.index(slot), base_s.index(slot))
        mbarrier.wait(dout_empty.index(slot), free)
        mbarrier.expect(dout_full.index(slot), dout.block_type.nbytes + QUERIES * 4)
        tma_load(dout, where, dout_full.index(slot), dout_s.index(slot))
        tma_load(delta, [row, start], dout_full.index(slot), delta_s.index(slot))
    return done + SHARE * steps


@gluon.jit
def fetch(
    arrays, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES: gl.constexpr,
    SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr, SEVERAL: gl.constexpr,
):  # fmt: skip
    """Draw tickets, and copy to shared memory what the program reads for them."""
    if SEVERAL:
        done, turn = 0, 0
        while t < tiles * sizes[5]:
            ticket = draw(counter_ptr)
            done = fetch_tile(
                arrays, memory, barriers, tickets, done, turn, t, tiles, places_ptr, sizes, SIDES, SHARE, KEYS,
                QUERIES, STAGES,
            )  # fmt: skip
            t = ticket
            turn += 1
        give(tickets, turn, (0,))
    else:
        fetch_tile(
            arrays, memory, barriers, tickets, 0, 0, t, tiles, places_ptr, sizes, SIDES, SHARE, KEYS, QUERIES, STAGES
        )


@gluon.jit
def add_tile(
    dq_sum, turns_ptr, memory, barriers, tickets, done, turn, tiles_q, SIDES: gl.constexpr, SHARE: gl.constexpr,
    KEYS: gl.constexpr, QUERIES: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    """Add the parts of dq of a ticket's tile to their sums, in turn; the first one is stored."""
    _, _, _, _, _, _, _, dq_s = memory
    _, _, _, _, _, _, dq_full, dq_empty = barriers
    batch, group, first_q = read(tickets, turn, BATCH), read(tickets, turn, GROUP), read(tickets, turn, FIRST_Q)
    queries, keys, at = read(tickets, turn, QUERIES_OF), read(tickets, turn, KEYS_OF), read(tickets, turn, AT)
    rows_at, low, steps = read(tickets, turn, ROWS_AT), read(tickets, turn, LOW), read(tickets, turn, STEPS)
    let_go(tickets, turn)
    for n in range(SHARE * steps):
        head, m = step_of(n, group, low, steps, SHARE)
        own_turn_ptr = turns_ptr + rows_at + head * tiles_q + m
        slot = (done + n) % SLOTS
        own_turn = turn_of(at, m * QUERIES, queries, keys, SIDES, KEYS)
        where = at_step(dq_sum, batch, first_q, m * QUERIES, queries, head)
        mbarrier.wait(dq_full.index(slot), ((done + n) // SLOTS) & 1)
        while read_turn(own_turn_ptr) != own_turn:
            pass
        own_turn = see_writes(own_turn)
        if own_turn == 0:
            tma_store(dq_sum, where, dq_s.index(slot))
        else:
            tma_add(dq_sum, where, dq_s.index(slot))
        tma.store_wait(0)
        mbarrier.arrive(dq_empty.index(slot))
        pass_turn(own_turn_ptr, own_turn + 1)
    return done + SHARE * steps


@gluon.jit
def add(
    dq_sum, turns_ptr, memory, barriers, tickets, tiles_q, SIDES: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr,
    QUERIES: gl.constexpr, SLOTS: gl.constexpr, SEVERAL: gl.constexpr,
):  # fmt: skip
    """Add the program's parts of dq to their sums."""
    wait_for(tickets, 0)
    if SEVERAL:
        done, turn = 0, 0
        while read(tickets, turn, MORE) == 1:
            done = add_tile(
                dq_sum, turns_ptr, memory, barriers, tickets, done, turn, tiles_q, SIDES, SHARE, KEYS, QUERIES, SLOTS
            )
            turn += 1
            wait_for(tickets, turn)
    else:
        add_tile(dq_sum, turns_ptr, memory, barriers, tickets, 0, 0, tiles_q, SIDES, SHARE, KEYS, QUERIES, SLOTS)


@gluon.jit
def products_of_step(n, k, q_s, none, q_full, STAGES: gl.constexpr):
    """Begin the products of keys with the queries of step n, when these are there."""
    slot = n % STAGES
    mbarrier.wait(q_full.index(slot), (n // STAGES) & 1)
    return warpgroup_mma(k, matrix(q_s.index(slot)).permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def differ_tile(
    W: gl.constexpr, dk, dv, memory, barriers, ds_full, walked, tickets, done, turn, SIDES: gl.constexpr,
    FACTOR: gl.constexpr, SCALE: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr,
    STAGES: gl.constexpr, SLOTS: gl.constexpr, AHEAD: gl.constexpr, LISTED: gl.constexpr,
):  # fmt: skip
    """dk and dv of one half, W, of the keys; half of the columns of dq, from all keys. Pairs are (keys, queries)."""
    q_s, k_s, v_s, dout_s, base_s, delta_s, ds_s, dq_s = memory
    kv_full, kv_empty, q_full, q_empty, dout_full, dout_empty, dq_full, dq_empty = barriers
    TYPE: gl.constexpr = q_s.dtype
    R: gl.constexpr = KEYS // 2
    D: gl.constexpr = k_s.shape[len(k_s.shape) - 1]
    V: gl.constexpr = v_s.shape[len(v_s.shape) - 1]
    HALF: gl.constexpr = D // 2
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, QUERIES, 16])
    OF_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, D, 16])
    OF_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, V, 16])
    OF_Q: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, HALF, 16])
    LEFT_K: gl.constexpr = gl.DotOperandLayout(0, OF_K, 2)
    LEFT_V: gl.constexpr = gl.DotOperandLayout(0, OF_V, 2)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([R, QUERIES], gl.float32, S)
    none_q = gl.zeros([QUERIES, HALF], gl.float32, OF_Q)
    k_all = matrix(k_s)
    k, v = k_all.slice(W * R, R), matrix(v_s).slice(W * R, R)
    k_half = k_all.slice(W * HALF, HALF, dim=1)
    queries, keys, at = read(tickets, turn, QUERIES_OF), read(tickets, turn, KEYS_OF), read(tickets, turn, AT)
    low, steps = read(tickets, turn, LOW), read(tickets, turn, STEPS)
    total_k = gl.zeros([R, D], gl.float32, OF_K)
    total_v = gl.zeros([R, V], gl.float32, OF_V)
    shift = keys - queries
    j = at + W * R + gl.arange(0, R, gl.SliceLayout(1, S))
    mbarrier.wait(kv_full, turn & 1)
    end = done + SHARE * steps
    s = none
    if AHEAD:
        if end > done:
            s = warpgroup_mma_wait(0, deps=[products_of_step(done, k, q_s, none, q_full, STAGES)])
    for n in range(done, end):
        _head, m = step_of(n - done, 0, low, steps, SHARE)
        start = m * QUERIES
        slot, ready = n % STAGES, (n // STAGES) & 1
        dq_at, ds_at = n % SLOTS, n % 2
        q_tile, dout_tile = matrix(q_s.index(slot)), matrix(dout_s.index(slot))
        if not AHEAD:
            s = products_of_step(n, k, q_s, none, q_full, STAGES)
        mbarrier.wait(dout_full.index(slot), ready)
        dp = warpgroup_mma(v, dout_tile.permute((1, 0)), none, use_acc=False, is_async=True)
        base = base_s.index(slot).reshape([QUERIES]).load(COLUMN)
        if LISTED:  # behind the sequence are numbers of the next one
            own = gl.arange(0, QUERIES, COLUMN) < queries - start
            base = gl.where(own, base, float("inf"))
        if AHEAD:
            # The last step computes its own once more, so that no product is in a branch.
            next_s = products_of_step(gl.minimum(n + 1, end - 1), k, q_s, none, q_full, STAGES)
        else:
            s = warpgroup_mma_wait(1, deps=[s])
        p = gl.exp2(gl.fma(s, FACTOR, -base[None, :]))
        # Behind the last key, k and v are 0, but p might be too large for a product with 0.
        if SIDES[1] is None:
            if at + KEYS > keys:
                p = gl.where((j < keys)[:, None], p, 0.0)
        elif (at + KEYS - 1 > start + shift + SIDES[1]) | (at + KEYS > keys):
            last = gl.minimum(start + gl.arange(0, QUERIES, COLUMN) + (shift + SIDES[1]), keys - 1)
            p = gl.where(j[:, None] <= last[None, :], p, 0.0)
        if SIDES[0] is not None:
            if at < start + QUERIES - 1 + shift - SIDES[0]:
                first = start + gl.arange(0, QUERIES, COLUMN) + (shift - SIDES[0])
                p = gl.where(j[:, None] >= first[None, :], p, 0.0)
        # This product reads p, so that the assembler leaves the exponentials before the wait for dp.
        left = gl.convert_layout(p.to(TYPE), LEFT_V, assert_trivial=True)
        total_v = warpgroup_mma(left, dout_tile, total_v, is_async=True)
        delta = delta_s.index(slot).reshape([QUERIES]).load(COLUMN)
        if LISTED:
            delta = gl.where(own, delta, 0.0)
        dp = warpgroup_mma_wait(2 if AHEAD else 1, deps=[dp])
        ds = p * (dp - delta[None, :])
        ds = ds.to(TYPE)
        ds_s.index(ds_at).slice(W * R, R).store(ds)
        fence_async_shared()
        # Two places: the other half cannot be two steps ahead, so a place is free again when it is used again.
        mbarrier.arrive(ds_full.index(ds_at))
        mbarrier.wait(ds_full.index(ds_at), (n // 2) & 1)
        part = warpgroup_mma(ds_s.index(ds_at).permute((1, 0)), k_half, none_q, use_acc=False, is_async=True)
        total_k = warpgroup_mma(gl.convert_layout(ds, LEFT_K, assert_trivial=True), q_tile, total_k, is_async=True)
        if AHEAD:
            part, total_v, s = warpgroup_mma_wait(1, deps=[part, total_v, next_s])
        else:
            part, total_v = warpgroup_mma_wait(1, deps=[part, total_v])
        mbarrier.arrive(dout_empty.index(slot))
        mbarrier.wait(dq_empty.index(dq_at), ((n // SLOTS) & 1) ^ 1)
        matrix(dq_s.index(dq_at)).slice(W * HALF, HALF, dim=1).store(part)
        fence_async_shared()
        mbarrier.arrive(dq_full.index(dq_at))
        total_k = warpgroup_mma_wait(0, deps=[total_k])
        mbarrier.arrive(q_empty.index(slot))
    mbarrier.arrive(walked)  # k and v are not read any more: their places take the results
    mbarrier.wait(walked, 0)
    k.store((total_k * SCALE).to(TYPE))
    v.store(total_v.to(TYPE))
    fence_async_shared()
    mbarrier.arrive(walked)
    if W == 0:
        mbarrier.wait(walked, 1)
        batch, group, first_k = read(tickets, turn, BATCH), read(tickets, turn, GROUP), read(tickets, turn, FIRST_K)
        tma_store(dk, at_step(dk, batch, first_k, at, keys, group), k_s)
        tma_store(dv, at_step(dv, batch, first_k, at, keys, group), v_s)
        tma.store_wait(0)
        mbarrier.arrive(kv_empty)
    let_go(tickets, turn)
    return end


@gluon.jit
def differ(
    W: gl.constexpr, dk, dv, memory, barriers, ds_full, walked, tickets, SIDES: gl.constexpr, FACTOR: gl.constexpr,
    SCALE: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr, STAGES: gl.constexpr,
    SLOTS: gl.constexpr, AHEAD: gl.constexpr, LISTED: gl.constexpr, SEVERAL: gl.constexpr,
):  # fmt: skip
    """dk and dv of one half, W, of the keys of the program's tiles; half of the columns of its parts of dq."""
    wait_for(tickets, 0)
    if SEVERAL:
        done, turn = 0, 0
        while read(tickets, turn, MORE) == 1:
            done = differ_tile(
                W, dk, dv, memory, barriers, ds_full, walked, tickets, done, turn, SIDES, FACTOR, SCALE, SHARE, KEYS,
                QUERIES, STAGES, SLOTS, AHEAD, LISTED,
            )  # fmt: skip
            turn += 1
            wait_for(tickets, turn)
    else:
        differ_tile(
            W, dk, dv, memory, barriers, ds_full, walked, tickets, 0, 0, SIDES, FACTOR, SCALE, SHARE, KEYS, QUERIES,
            STAGES, SLOTS, AHEAD, LISTED,
        )  # fmt: skip


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
    counter_ptr,
    turns_ptr,
    dq_sum,
    dk,
    dv,
    sizes,
    SIDES: gl.constexpr,
    FACTOR: gl.constexpr,
    SCALE: gl.constexpr,
    SHARE: gl.constexpr,
    KEYS: gl.constexpr,
    QUERIES: gl.constexpr,
    STAGES: gl.constexpr,
    SLOTS: gl.constexpr,
    REGISTERS: gl.constexpr,
    AHEAD: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Tensor descriptors: q, k, v, dout, dk, dv; base and delta, see `rows`; dq_sum (batch, queries, heads, D), without
    its factor. counter and turns (heads of all rows, tiles of queries) are 0 at first.

    sizes: Tq, Tk, heads, tiles of keys of a group, tiles of queries of a head, groups of all rows, groups of a section.
    places, runs, SIDES: as `forward`. FACTOR: of products in exponents. SHARE: heads of a group; STAGES: of q and dout;
    SLOTS: of dq. AHEAD: whether a step begins the products of queries and keys of the next one, which takes registers.
    """
    TYPE: gl.constexpr = q.dtype
    q_s = gl.allocate_shared_memory(TYPE, several(STAGES, q), q.layout)
    k_s = gl.allocate_shared_memory(TYPE, k.block_shape, k.layout)
    v_s = gl.allocate_shared_memory(TYPE, v.block_shape, v.layout)
    dout_s = gl.allocate_shared_memory(TYPE, several(STAGES, dout), dout.layout)
    base_s = gl.allocate_shared_memory(gl.float32, several(STAGES, base), base.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, several(STAGES, delta), delta.layout)
    ds_s = gl.allocate_shared_memory(
        TYPE, [2, KEYS, QUERIES], gl.NVMMASharedLayout.get_default_for([KEYS, QUERIES], TYPE)
    )
    dq_s = gl.allocate_shared_memory(gl.float32, several(SLOTS, dq_sum), dq_sum.layout)
    kv_full, kv_empty, walked = ring(1, 1).index(0), ring(1, 1).index(0), ring(1, 2).index(0)
    q_full, q_empty = ring(STAGES, 1), ring(STAGES, 2)
    dout_full, dout_empty = ring(STAGES, 1), ring(STAGES, 2)
    dq_full, dq_empty = ring(SLOTS, 2), ring(SLOTS, 1)
    ds_full = ring(2, 2)
    tickets = tickets_for(3, 16)
    fence_async_shared()
    arrays = (q, k, v, dout, base, delta)
    memory = (q_s, k_s, v_s, dout_s, base_s, delta_s, ds_s, dq_s)
    barriers = (kv_full, kv_empty, q_full, q_empty, dout_full, dout_empty, dq_full, dq_empty)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes[3], KEYS)
    gl.warp_specialize(
        [
            (differ, (0, dk, dv, memory, barriers, ds_full, walked, tickets, SIDES, FACTOR, SCALE, SHARE, KEYS,
                      QUERIES, STAGES, SLOTS, AHEAD, places_ptr is not None, runs_ptr is not None)),
            (differ, (1, dk, dv, memory, barriers, ds_full, walked, tickets, SIDES, FACTOR, SCALE, SHARE, KEYS,
                      QUERIES, STAGES, SLOTS, AHEAD, places_ptr is not None, runs_ptr is not None)),
            (fetch, (arrays, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES, SHARE, KEYS,
                     QUERIES, STAGES, runs_ptr is not None)),
            (add, (dq_sum, turns_ptr, memory, barriers, tickets, sizes[4], SIDES, SHARE, KEYS, QUERIES, SLOTS,
                   runs_ptr is not None)),
        ],
        [WARPS, 1, 1],
        [REGISTERS, FEW_REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
