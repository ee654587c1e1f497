"""Attention, backward, on Hopper, heads wider than 128: dq, in a walk over the keys. Symbols: ../README.md.

A program takes tiles of queries, one after the other, and walks over their blocks of keys as the forward pass does. Its
warps are of two kinds:
    fetch   brings q and dout, and block after block of k and v, by TMA
    differ  twice, for half of the queries each: two products, ds in registers, and a product that adds to dq
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
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .backward import FEW_REGISTERS
from .forward import (
    AT,
    BATCH,
    FIRST_Q,
    HEAD,
    HIGH,
    KEYS_OF,
    LOW,
    MORE,
    QUERIES_OF,
    fetch_block,
    scores,
)
from .products import WARPS, anew, first_columns, matrix, more_columns, over_columns, pieces, several
from .steps import differences
from .tickets import draw, give, let_go, parity_of, read, ring, slot_of, tickets_for, wait_for
from .tiles import at_step, blocks_seen, tile_of, tiles_of_head, unmasked


@gluon.jit
def fetch(
    arrays, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy to shared memory what the program's tiles need, and draw tickets for these."""
    q, k, v, dout = arrays
    q_s, k_s, v_s, dout_s = memory
    own_full, own_empty, k_full, k_empty, v_full, v_empty = barriers
    n, turn = 0, 0
    while t < tiles * sizes[5]:
        ticket = draw(counter_ptr)
        batch, head, first_q, queries, first_k, keys, at, outside = tile_of(t, tiles, places_ptr, sizes, 2 * ROWS)
        if queries > 0:
            low, high = blocks_seen(at, queries, keys, SIDES, 2 * ROWS, KEYS)
            give(tickets, turn, (1, batch, head, first_q, queries, keys, at, outside, low, high))
            for w in gl.static_range(2):
                where = at_step(q, batch, first_q, at + w * ROWS, queries, head)
                mbarrier.wait(own_empty.index(w), (turn & 1) ^ 1)
                mbarrier.expect(own_full.index(w), q.block_type.nbytes + dout.block_type.nbytes)
                tma_load(q, where, own_full.index(w), q_s.index(w))
                tma_load(dout, where, own_full.index(w), dout_s.index(w))
            for i in range(high - low):
                where = at_step(k, batch, first_k, (high - 1 - i) * KEYS, keys, head // sizes[3])
                fetch_block(k, where, n, k_s, k_full, k_empty, STAGES[0])
                fetch_block(v, where, n, v_s, v_full, v_empty, STAGES[1])
                n += 1
            turn += 1
        t = ticket
    give(tickets, turn, (0,))


@gluon.jit
def store_columns(total, live, START: gl.constexpr, SCALE: gl.constexpr, to):
    """Store sums as columns from START on, zeros for queries that see no key."""
    live = gl.convert_layout(live, gl.SliceLayout(1, total.type.layout), assert_trivial=True)
    total = gl.where(live[:, None], total * SCALE, 0.0)
    matrix(to).slice(START, total.shape[1], dim=1).store(total.to(to.dtype))


@gluon.jit
def differ(
    W: gl.constexpr, dq, base_ptr, delta_ptr, memory, barriers, tickets, heads, pitch, SIDES: gl.constexpr,
    FACTORS: gl.constexpr, SCALE: gl.constexpr, SIZES: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """dq of the queries of group W in the program's tiles. Pairs are (queries, keys)."""
    q_s, k_s, v_s, dout_s = memory
    own_full, own_empty, k_full, k_empty, v_full, v_empty = barriers
    TYPE: gl.constexpr = q_s.dtype
    LESS: gl.constexpr = first_columns(SIZES[0])
    REST: gl.constexpr = more_columns(SIZES[0])
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, KEYS, 16])
    OF_LESS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, LESS, 16])
    OF_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, REST or 64, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OF_LESS, 2)
    LEFT_REST: gl.constexpr = gl.DotOperandLayout(0, OF_REST, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    empty = gl.zeros([ROWS, KEYS], gl.float32, S)
    n, turn = 0, 0
    wait_for(tickets, 0)
    while read(tickets, turn, MORE) == 1:
        batch, head, first_q = read(tickets, turn, BATCH), read(tickets, turn, HEAD), read(tickets, turn, FIRST_Q)
        queries, keys, at = read(tickets, turn, QUERIES_OF), read(tickets, turn, KEYS_OF), read(tickets, turn, AT)
        low, high = read(tickets, turn, LOW), read(tickets, turn, HIGH)
        let_go(tickets, turn)
        own = at + W * ROWS
        bottom, top = unmasked(own, queries, keys, low, high, SIDES, ROWS, KEYS)
        i = own + gl.arange(0, ROWS, ROW)
        numbers = gl.cast(batch * heads + head, gl.int64) * pitch + first_q
        base = gl.load(base_ptr + numbers + i, mask=i < queries, other=float("inf"))
        delta = gl.load(delta_ptr + numbers + i, mask=i < queries, other=0.0)
        total = gl.zeros([ROWS, LESS], gl.float32, OF_LESS)
        rest = gl.zeros([ROWS, REST or 64], gl.float32, OF_REST)
        mbarrier.wait(own_full.index(W), turn & 1)
        for step in range(high - low):
            block = high - 1 - step
            border = (block >= top) | (block < bottom)
            k_at, v_at = slot_of(n, STAGES[0]), slot_of(n, STAGES[1])
            k = matrix(k_s.index(k_at))
            at_w = anew(W)
            q, dout = matrix(q_s.index(at_w)), matrix(dout_s.index(at_w))
            mbarrier.wait(k_full.index(k_at), parity_of(n, STAGES[0]))
            s = over_columns(q, k, empty, SIZES[0])
            mbarrier.wait(v_full.index(v_at), parity_of(n, STAGES[1]))
            dp = over_columns(dout, matrix(v_s.index(v_at)), empty, SIZES[1])
            s = warpgroup_mma_wait(pieces(SIZES[1]), deps=[s])
            s = scores(s, i, block, border, (queries, keys), SIDES, FACTORS)
            p = gl.exp2(gl.fma(s, FACTORS[2], -base[:, None]))
            dp = warpgroup_mma_wait(0, deps=[dp])
            mbarrier.arrive(v_empty.index(v_at))
            ds = differences(p, dp, base[:, None], delta[:, None], FACTORS).to(TYPE)
            left = gl.convert_layout(ds, LEFT, assert_trivial=True)
            total = warpgroup_mma(left, k.slice(0, LESS, dim=1), total, is_async=True)
            if REST:
                left = gl.convert_layout(ds, LEFT_REST, assert_trivial=True)
                rest = warpgroup_mma(left, k.slice(LESS, REST, dim=1), rest, is_async=True)
                total, rest = warpgroup_mma_wait(0, deps=[total, rest])
            else:
                total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.arrive(k_empty.index(k_at))
            n += 1
        # No product reads q any more, and dq takes its place.
        live = base != float("inf")
        store_columns(total, live, 0, SCALE, q_s.index(W))
        if REST:
            store_columns(rest, live, LESS, SCALE, q_s.index(W))
        fence_async_shared()
        tma_store(dq, at_step(dq, batch, first_q, own, queries, head), q_s.index(W))
        tma.store_wait(0)
        mbarrier.arrive(own_empty.index(W))
        turn += 1
        wait_for(tickets, turn)


@gluon.jit(do_not_specialize=["sizes", "pitch"])
def walk_keys(
    q,
    k,
    v,
    dout,
    base_ptr,
    delta_ptr,
    places_ptr,
    runs_ptr,
    counter_ptr,
    dq,
    sizes,
    pitch,
    SIDES: gl.constexpr,
    FACTORS: gl.constexpr,
    SCALE: gl.constexpr,
    SIZES: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dq. Tensor descriptors: q, k, v, dout, dq. places, runs, counter, SIDES, FACTORS: as `forward`. base, delta: as
    `rows` has stored them.

    sizes: as `forward`. pitch: the distance of the rows of base and delta. SIZES: D and V, in units of 64. STAGES: of
    k, of v.
    """
    TYPE: gl.constexpr = q.dtype
    ROWS: gl.constexpr = q.block_shape[len(q.block_shape) - 3]
    KEYS: gl.constexpr = k.block_shape[len(k.block_shape) - 3]
    q_s = gl.allocate_shared_memory(TYPE, several(2, q), q.layout)
    dout_s = gl.allocate_shared_memory(TYPE, several(2, dout), dout.layout)
    k_s = gl.allocate_shared_memory(TYPE, several(STAGES[0], k), k.layout)
    v_s = gl.allocate_shared_memory(TYPE, several(STAGES[1], v), v.layout)
    own_full, own_empty = ring(2, 1), ring(2, 1)
    k_full, k_empty = ring(STAGES[0], 1), ring(STAGES[0], 2)
    v_full, v_empty = ring(STAGES[1], 1), ring(STAGES[1], 2)
    tickets = tickets_for(2, 16)
    fence_async_shared()
    arrays, memory = (q, k, v, dout), (q_s, k_s, v_s, dout_s)
    barriers = (own_full, own_empty, k_full, k_empty, v_full, v_empty)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes[4], 2 * ROWS)
    gl.warp_specialize(
        [
            (differ, (0, dq, base_ptr, delta_ptr, memory, barriers, tickets, sizes[2], pitch, SIDES, FACTORS, SCALE,
                      SIZES, ROWS, KEYS, STAGES)),
            (differ, (1, dq, base_ptr, delta_ptr, memory, barriers, tickets, sizes[2], pitch, SIDES, FACTORS, SCALE,
                      SIZES, ROWS, KEYS, STAGES)),
            (fetch, (arrays, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES, ROWS, KEYS,
                     STAGES)),
        ],
        [WARPS, 1],
        [REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
