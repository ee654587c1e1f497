"""Attention, forward, on Hopper: products on the tensor cores beside the softmax of others. Symbols: ../README.md.

A program takes tiles of queries, one after the other, and walks over their blocks of keys, from the last one that
any of its queries sees to the first. Its warps are of three kinds:
    fetch   brings q, and block after block of k and v, by TMA
    attend  two or three times, for some of the queries each: while the tensor cores compute the scores of a block and
            add the values of the block before for one group of warps, another one has its softmax
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import tma_load, tma_store
from retrograd.core.kernels.numerics import LOG2E, let_next_start, wait_for_previous

from ..triton.pairs import LN2
from .products import WARPS, matrix, over_columns, same, several
from .tickets import draw, give, let_go, parity_of, read, ring, slot_of, tickets_for, wait_for
from .tiles import at_step, blocks_seen, tile_of, tiles_of_head, unmasked

# Numbers of a ticket: whether there is a tile; what `tile_of` tells of it; what `blocks_seen` does.
MORE, BATCH, HEAD, FIRST_Q, QUERIES_OF, KEYS_OF, AT, OUTSIDE, LOW, HIGH = (gl.constexpr(i) for i in range(10))
FETCH_REGISTERS = gl.constexpr(40)
FEWER_REGISTERS = gl.constexpr(24)  # beside three groups


@gluon.jit
def fetch_block(array, where, n, memory, full, empty, STAGES: gl.constexpr):
    """Copy a block to the place of number n in a ring, when it is free."""
    slot = slot_of(n, STAGES)
    mbarrier.wait(empty.index(slot), parity_of(n, STAGES) ^ 1)
    mbarrier.expect(full.index(slot), array.block_type.nbytes)
    tma_load(array, where, full.index(slot), memory.index(slot))


@gluon.jit
def fetch(
    q, k, v, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES: gl.constexpr,
    QUERIES: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, QUEUED: gl.constexpr,
):  # fmt: skip
    """Copy to shared memory what the program's tiles need, and draw tickets for these."""
    q_s, k_s, v_s, _ = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    n, turn = 0, 0
    while t < tiles * sizes[5]:
        ticket = draw(counter_ptr)
        batch, head, first_q, queries, first_k, keys, at, outside = tile_of(
            t, tiles, places_ptr, sizes, GROUPS * QUERIES
        )
        if queries > 0:
            low, high = blocks_seen(at, queries, keys, SIDES, GROUPS * QUERIES, KEYS)
            give(tickets, turn, (1, batch, head, first_q, queries, keys, at, outside, low, high))
            for w in gl.static_range(GROUPS):
                place = w * QUEUED + slot_of(turn, QUEUED)
                where = at_step(q, batch, first_q, at + w * QUERIES, queries, head)
                mbarrier.wait(q_empty.index(place), parity_of(turn, QUEUED) ^ 1)
                mbarrier.expect(q_full.index(place), q.block_type.nbytes)
                tma_load(q, where, q_full.index(place), q_s.index(place))
            for i in range(high - low):
                where = at_step(k, batch, first_k, (high - 1 - i) * KEYS, keys, head // sizes[3])
                fetch_block(k, where, n, k_s, k_full, k_empty, STAGES)
                fetch_block(v, where, n, v_s, v_full, v_empty, STAGES)
                n += 1
            turn += 1
        t = ticket
    give(tickets, turn, (0,))


@gluon.jit
def bounded(s, FACTOR: gl.constexpr):
    """tanh(s FACTOR), as `triton.pairs.fast_tanh`."""
    root = gl.rsqrt(1.0 + gl.exp2(s * (FACTOR * 2.0 * LOG2E)))
    return 1.0 - 2.0 * root * root


@gluon.jit
def scores(s, i, block, border, counts, SIDES: gl.constexpr, FACTORS: gl.constexpr):
    """Scores from products: bounded, and -inf where a key is not visible; of queries i and a block of keys.

    border: whether there are pairs that are not visible.
    """
    KEYS: gl.constexpr = s.shape[1]
    queries, keys = counts
    if FACTORS[0] is not None:
        s = bounded(s, FACTORS[0]) * FACTORS[1]
    if border:
        j = block * KEYS + gl.arange(0, KEYS, gl.SliceLayout(0, s.type.layout))
        shift = keys - queries
        last = keys - 1
        if SIDES[1] is not None:
            last = gl.minimum(last, i + (shift + SIDES[1]))
            s = gl.where(j[None, :] <= last[:, None], s, float("-inf"))
        else:
            s = gl.where((j <= last)[None, :], s, float("-inf"))
        if SIDES[0] is not None:
            s = gl.where(j[None, :] >= (i + (shift - SIDES[0]))[:, None], s, float("-inf"))
    return s


@gluon.jit
def softmax(s, largest, FACTOR: gl.constexpr):
    """The new largest score, the factor of older sums, the exponentials."""
    more = gl.maximum(largest, gl.max(s, 1))
    safe = gl.where(more == float("-inf"), 0.0, more)
    before = gl.exp2((largest - safe) * FACTOR)  # 1 if the largest stays, as in a block that a query does not see
    # Of two products the compiler might round either one, so which one is fused is said here.
    return more, before, gl.exp2(gl.fma(s, FACTOR, -(safe * FACTOR)[:, None]))


@gluon.jit
def part_sums(p):
    """Sums over the keys that one thread holds: (queries, 8)."""
    return gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), 1)


@gluon.jit
def add_block(
    sums, n, q, empty, memory, barriers, i, block, border, counts, SIDES: gl.constexpr, FACTORS: gl.constexpr,
    SIZE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The running sums with the values of block number n of the program, and the exponentials of the next one."""
    largest, total, result, p = sums
    _, k_s, v_s, _ = memory
    _, _, k_full, k_empty, v_full, v_empty = barriers
    ROW: gl.constexpr = gl.SliceLayout(1, result.type.layout)
    PART: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    LEFT: gl.constexpr = p.type.layout
    slot, next_slot = slot_of(n, STAGES), slot_of(n + 1, STAGES)
    mbarrier.wait(k_full.index(next_slot), parity_of(n + 1, STAGES))
    s = over_columns(q, matrix(k_s.index(next_slot)), empty, SIZE)
    mbarrier.wait(v_full.index(slot), parity_of(n, STAGES))
    result = warpgroup_mma(p, matrix(v_s.index(slot)), result, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(next_slot))
    s = scores(s, i, block, border, counts, SIDES, FACTORS)
    largest, before, p = softmax(s, largest, FACTORS[2])
    total = total * gl.convert_layout(before, PART, assert_trivial=True)[:, None] + part_sums(p)
    result = warpgroup_mma_wait(0, deps=[result])
    mbarrier.arrive(v_empty.index(slot))
    result = result * gl.convert_layout(before, ROW, assert_trivial=True)[:, None]
    return largest, total, result, gl.convert_layout(p.to(v_s.dtype), LEFT, assert_trivial=True)


@gluon.jit
def attend(
    W: gl.constexpr, out, sinks, lse, memory, barriers, tickets, runs_ptr, sizes, SIDES: gl.constexpr,
    FACTORS: gl.constexpr, SIZE: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    QUEUED: gl.constexpr, OUT_IN_Q: gl.constexpr,
):  # fmt: skip
    """out and lse of the queries of group W in the program's tiles."""
    q_s, k_s, v_s, out_s = memory
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    COLUMNS: gl.constexpr = v_s.shape[len(v_s.shape) - 1]
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, KEYS, 16])
    R: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, COLUMNS, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, R, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    empty = gl.zeros([QUERIES, KEYS], gl.float32, S)
    n, turn = 0, 0
    wait_for(tickets, 0)
    while read(tickets, turn, MORE) == 1:
        batch, head, first_q = read(tickets, turn, BATCH), read(tickets, turn, HEAD), read(tickets, turn, FIRST_Q)
        queries, keys, at = read(tickets, turn, QUERIES_OF), read(tickets, turn, KEYS_OF), read(tickets, turn, AT)
        outside, low, high = read(tickets, turn, OUTSIDE), read(tickets, turn, LOW), read(tickets, turn, HIGH)
        let_go(tickets, turn)
        own = at + W * QUERIES
        bottom, top = unmasked(own, queries, keys, low, high, SIDES, QUERIES, KEYS)
        counts = queries, keys
        i = own + gl.arange(0, QUERIES, ROW)

        largest = gl.full([QUERIES], float("-inf"), gl.float32, ROW)
        if sinks.pointer is not None:
            sink = gl.load(sinks.pointer + head * sinks.head) * (LOG2E / FACTORS[2])
            largest = gl.full([QUERIES], sink, gl.float32, ROW)
        place = W * QUEUED + slot_of(turn, QUEUED)
        q = matrix(q_s.index(place))
        slot = slot_of(n, STAGES)
        mbarrier.wait(q_full.index(place), parity_of(turn, QUEUED))
        mbarrier.wait(k_full.index(slot), parity_of(n, STAGES))
        s = warpgroup_mma_wait(0, deps=[over_columns(q, matrix(k_s.index(slot)), empty, SIZE)])
        mbarrier.arrive(k_empty.index(slot))
        s = scores(s, i, high - 1, True, counts, SIDES, FACTORS)
        largest, _before, p = softmax(s, largest, FACTORS[2])
        total = part_sums(p)
        p = gl.convert_layout(p.to(v_s.dtype), LEFT, assert_trivial=True)
        result = gl.zeros([QUERIES, COLUMNS], gl.float32, R)
        for step in range(high - 1 - low):
            block = high - 2 - step
            border = (block >= top) | (block < bottom)
            largest, total, result, p = add_block(
                (largest, total, result, p), n, q, empty, memory, barriers, i, block, border, counts, SIDES, FACTORS,
                SIZE, STAGES,
            )  # fmt: skip
            n += 1
        if not OUT_IN_Q:
            mbarrier.arrive(q_empty.index(place))
        slot = slot_of(n, STAGES)
        mbarrier.wait(v_full.index(slot), parity_of(n, STAGES))
        result = warpgroup_mma(p, matrix(v_s.index(slot)), result, is_async=True)
        n += 1
        turn += 1
        wait_for(tickets, turn)
        result = warpgroup_mma_wait(0, deps=[result])
        mbarrier.arrive(v_empty.index(slot))

        whole = gl.convert_layout(gl.sum(total, 1), ROW, assert_trivial=True)
        if sinks.pointer is not None:
            whole += gl.where(sink > float("-inf"), gl.exp2((sink - largest) * FACTORS[2]), 0.0)
        some = whole != 0
        whole = gl.where(some, whole, 1.0)
        inverse = gl.convert_layout(1.0 / whole, gl.SliceLayout(1, R), assert_trivial=True)
        tma.store_wait(0)
        matrix(out_s.index(W)).store((result * inverse[:, None]).to(v_s.dtype))
        fence_async_shared()
        tma_store(out, at_step(out, batch, first_q, own, queries, head), out_s.index(W))
        if OUT_IN_Q:
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(place))
        logarithm = gl.where(some, gl.fma(largest, FACTORS[2], gl.log2(whole)) * LN2, float("-inf"))
        logarithm = gl.where(outside != 0, 0.0, logarithm)
        if runs_ptr is not None:  # first_q is a step of all rows
            batch = first_q // sizes[0]
            first_q -= batch * sizes[0]
        row = lse.pointer + gl.cast(batch, gl.int64) * lse.batch + gl.cast(head, gl.int64) * lse.head
        gl.store(row + (first_q + i).to(gl.int64) * lse.step, logarithm, mask=i < queries)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["sizes"])
def forward(
    q,
    k,
    v,
    sinks,
    places_ptr,
    runs_ptr,
    counter_ptr,
    out,
    lse,
    sizes,
    SIDES: gl.constexpr,
    FACTORS: gl.constexpr,
    SIZE: gl.constexpr,
    QUERIES: gl.constexpr,
    KEYS: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
    QUEUED: gl.constexpr,
    REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """q, k, v, out: tensor descriptors. places: of tiles, where sequences are packed or ids tell them apart; see
    `tiles.list_places`. runs: of ids.

    counter: 0 at first. sizes: Tq, Tk, heads, heads of a group, tiles of a head, heads of all rows, heads of a section.
    SIDES: of the window. FACTORS: of products in a softcap, of bounded products, of scores in exponents. SIZE: D, in
    units of 64. QUERIES: of one group; KEYS: of a block; STAGES: of k and v; QUEUED: tiles whose q is in shared memory.
    """
    TYPE: gl.constexpr = q.dtype
    PLACES: gl.constexpr = 2 if GROUPS == 2 else 4  # shapes are powers of two
    q_s = gl.allocate_shared_memory(TYPE, several(PLACES * QUEUED, q), q.layout)
    k_s = gl.allocate_shared_memory(TYPE, several(STAGES, k), k.layout)
    v_s = gl.allocate_shared_memory(TYPE, several(STAGES, v), v.layout)
    # Where there is little memory, out is staged in the place of q.
    OUT_IN_Q: gl.constexpr = QUEUED == 1 and same(q.block_shape, out.block_shape)
    out_s = q_s
    if not OUT_IN_Q:
        out_s = gl.allocate_shared_memory(TYPE, several(PLACES, out), out.layout)
    q_full, q_empty = ring(GROUPS * QUEUED, 1), ring(GROUPS * QUEUED, 1)
    k_full, k_empty = ring(STAGES, 1), ring(STAGES, GROUPS)
    v_full, v_empty = ring(STAGES, 1), ring(STAGES, GROUPS)
    tickets = tickets_for(GROUPS, 16)
    fence_async_shared()
    memory = (q_s, k_s, v_s, out_s)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes[4], GROUPS * QUERIES)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (0, out, sinks, lse, memory, barriers, tickets, runs_ptr, sizes, SIDES, FACTORS, SIZE, QUERIES,
                          KEYS, STAGES, QUEUED, OUT_IN_Q)),
                (attend, (1, out, sinks, lse, memory, barriers, tickets, runs_ptr, sizes, SIDES, FACTORS, SIZE, QUERIES,
                          KEYS, STAGES, QUEUED, OUT_IN_Q)),
                (fetch, (q, k, v, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES, QUERIES,
                         KEYS, STAGES, GROUPS, QUEUED)),
            ],
            [WARPS, 1],
            [REGISTERS, FETCH_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (attend, (0, out, sinks, lse, memory, barriers, tickets, runs_ptr, sizes, SIDES, FACTORS, SIZE, QUERIES,
                          KEYS, STAGES, QUEUED, OUT_IN_Q)),
                (attend, (1, out, sinks, lse, memory, barriers, tickets, runs_ptr, sizes, SIDES, FACTORS, SIZE, QUERIES,
                          KEYS, STAGES, QUEUED, OUT_IN_Q)),
                (attend, (2, out, sinks, lse, memory, barriers, tickets, runs_ptr, sizes, SIDES, FACTORS, SIZE, QUERIES,
                          KEYS, STAGES, QUEUED, OUT_IN_Q)),
                (fetch, (q, k, v, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES, QUERIES,
                         KEYS, STAGES, GROUPS, QUEUED)),
            ],
            [WARPS, WARPS, 1],
            [REGISTERS, REGISTERS, FEWER_REGISTERS],
        )  # fmt: skip
