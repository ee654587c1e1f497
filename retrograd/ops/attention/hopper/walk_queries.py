"""Attention, backward, on Hopper, heads wider than 128: dk, or dv, in a walk over the queries. Symbols: ../README.md.

A program takes tiles of keys, one after the other, and walks over the tiles of queries that see each, as `backward`
does. Its warps are of two kinds:
    fetch   brings k, and tile after tile of q and dout with their rows' base, by TMA; for dk also v, and delta
    differ  twice, for half of the keys each: for dk two products, ds in registers, and a product that adds to dk; for
            dv one product, p in registers, and a product that adds to dv
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

from retrograd.core.kernels.gluon import tma_store
from retrograd.core.kernels.numerics import let_next_start, wait_for_previous

from .backward import FEW_REGISTERS, fetch
from .products import WARPS, anew, first_columns, matrix, more_columns, over_columns, pieces, several
from .steps import MORE, STEPS, at_border, base_of, deltas_of, differences, keys_of, probabilities, steps_unmasked
from .tickets import draw, let_go, parity_of, read, ring, slot_of, tickets_for, wait_for
from .tiles import at_step, tiles_of_head


@gluon.jit
def differ(
    W: gl.constexpr, total_desc, memory, barriers, tickets, SIDES: gl.constexpr, FACTORS: gl.constexpr,
    SCALE: gl.constexpr, SIZES: gl.constexpr, SHARE: gl.constexpr, ROWS: gl.constexpr, QUERIES: gl.constexpr,
    STAGES: gl.constexpr, OF_VALUES: gl.constexpr, LISTED: gl.constexpr,
):  # fmt: skip
    """dk or dv of the keys of group W in the program's tiles. Pairs are (keys, queries)."""
    q_s, k_s, v_s, dout_s, base_s, delta_s = memory
    k_empty, v_empty, q_full, q_empty, dout_full, dout_empty = barriers
    TYPE: gl.constexpr = q_s.dtype
    LESS: gl.constexpr = first_columns(SIZES[1] if OF_VALUES else SIZES[0])
    REST: gl.constexpr = more_columns(SIZES[1] if OF_VALUES else SIZES[0])
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, QUERIES, 16])
    OF_LESS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, LESS, 16])
    OF_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, REST or 64, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OF_LESS, 2)
    LEFT_REST: gl.constexpr = gl.DotOperandLayout(0, OF_REST, 2)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([ROWS, QUERIES], gl.float32, S)
    n, turn = 0, 0
    wait_for(tickets, 0)
    while read(tickets, turn, MORE) == 1:
        end = n + SHARE * read(tickets, turn, STEPS)
        first, until = steps_unmasked(end, tickets, turn, SIDES, SHARE, 2 * ROWS, QUERIES, LISTED)
        total = gl.zeros([ROWS, LESS], gl.float32, OF_LESS)
        rest = gl.zeros([ROWS, REST or 64], gl.float32, OF_REST)
        while n < end:
            border = at_border(n, first, until, SIDES, LISTED)
            q_at, dout_at = slot_of(n, STAGES[0]), slot_of(n, STAGES[1])
            q_tile, dout_tile = matrix(q_s.index(q_at)), matrix(dout_s.index(dout_at))
            mbarrier.wait(q_full.index(q_at), parity_of(n, STAGES[0]))
            own = anew(W)
            s = over_columns(matrix(k_s.index(own)), q_tile, none, SIZES[0])
            mbarrier.wait(dout_full.index(dout_at), parity_of(n, STAGES[1]))
            base = base_of(base_s, q_at, COLUMN)
            if OF_VALUES:
                s = warpgroup_mma_wait(0, deps=[s])
                p = probabilities(s, base, border, W * ROWS, end - n, tickets, turn, SIDES, FACTORS, SHARE, LISTED)
                pairs, tile = p.to(TYPE), dout_tile
            else:
                dp = over_columns(matrix(v_s.index(own)), dout_tile, none, SIZES[1])
                s = warpgroup_mma_wait(pieces(SIZES[1]), deps=[s])
                p = probabilities(s, base, border, W * ROWS, end - n, tickets, turn, SIDES, FACTORS, SHARE, LISTED)
                delta = deltas_of(delta_s.index(dout_at), border, end - n, tickets, turn, SHARE, LISTED, COLUMN)
                dp = warpgroup_mma_wait(0, deps=[dp])
                if FACTORS[0] is not None:
                    base = base_of(base_s, q_at, COLUMN)
                ds = differences(p, dp, base[None, :], delta[None, :], FACTORS)
                pairs, tile = ds.to(TYPE), q_tile
            left = gl.convert_layout(pairs, LEFT, assert_trivial=True)
            total = warpgroup_mma(left, tile.slice(0, LESS, dim=1), total, is_async=True)
            if REST:
                left = gl.convert_layout(pairs, LEFT_REST, assert_trivial=True)
                rest = warpgroup_mma(left, tile.slice(LESS, REST, dim=1), rest, is_async=True)
            # Behind the products, whose operands come from base and delta: these have been read.
            mbarrier.arrive(q_empty.index(q_at) if OF_VALUES else dout_empty.index(dout_at))
            if REST:
                total, rest = warpgroup_mma_wait(0, deps=[total, rest])
            else:
                total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.arrive(dout_empty.index(dout_at) if OF_VALUES else q_empty.index(q_at))
            n += 1
        batch, first_k, at, keys, group = keys_of(tickets, turn)
        # Only this group's products read its part of k, and these are done: the result takes its place.
        place = k_s.index(W)._reinterpret(TYPE, total_desc.block_shape, total_desc.layout)
        FACTOR: gl.constexpr = 1.0 if OF_VALUES else SCALE
        matrix(place).slice(0, LESS, dim=1).store((total * FACTOR).to(TYPE))
        if REST:
            matrix(place).slice(LESS, REST, dim=1).store((rest * FACTOR).to(TYPE))
        fence_async_shared()
        tma_store(total_desc, at_step(total_desc, batch, first_k, at + W * ROWS, keys, group), place)
        if not OF_VALUES:
            mbarrier.arrive(v_empty)
        tma.store_wait(0)
        mbarrier.arrive(k_empty)
        let_go(tickets, turn)
        turn += 1
        wait_for(tickets, turn)


@gluon.jit(do_not_specialize=["sizes"])
def walk_queries(
    q,
    k,
    v,
    dout,
    base,
    delta,
    places_ptr,
    runs_ptr,
    counter_ptr,
    total,
    sizes,
    SIDES: gl.constexpr,
    FACTORS: gl.constexpr,
    SCALE: gl.constexpr,
    SIZES: gl.constexpr,
    SHARE: gl.constexpr,
    STAGES: gl.constexpr,
    OF_VALUES: gl.constexpr,
    REGISTERS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dk; dv with OF_VALUES. Tensor descriptors: q, k, v, dout; base and delta, as `rows` has stored them; total, which
    is dk or dv.

    counter: 0 at first; counter[1] for dk, counter[2] for dv. places, runs, SIDES, FACTORS: as `forward`. sizes,
    SHARE, STAGES: as `backward`. SIZES: as `walk_keys`.
    """
    TYPE: gl.constexpr = q.dtype
    ROWS: gl.constexpr = k.block_shape[len(k.block_shape) - 3]
    QUERIES: gl.constexpr = q.block_shape[len(q.block_shape) - 3]
    q_s = gl.allocate_shared_memory(TYPE, several(STAGES[0], q), q.layout)
    k_s = gl.allocate_shared_memory(TYPE, several(2, k), k.layout)
    dout_s = gl.allocate_shared_memory(TYPE, several(STAGES[1], dout), dout.layout)
    base_s = gl.allocate_shared_memory(gl.float32, several(STAGES[0], base), base.layout)
    k_empty = ring(1, 2).index(0)
    q_full, q_empty = ring(STAGES[0], 1), ring(STAGES[0], 2)
    dout_full, dout_empty = ring(STAGES[1], 1), ring(STAGES[1], 2)
    if OF_VALUES:  # not used
        v_s, delta_s, v_empty = k_s, base_s, k_empty
    else:
        v_s = gl.allocate_shared_memory(TYPE, several(2, v), v.layout)
        delta_s = gl.allocate_shared_memory(gl.float32, several(STAGES[1], delta), delta.layout)
        v_empty = ring(1, 2).index(0)
    tickets = tickets_for(2, 16)
    fence_async_shared()
    arrays = (q, k, v, dout, base, delta)
    memory = (q_s, k_s, v_s, dout_s, base_s, delta_s)
    barriers = (k_empty, v_empty, q_full, q_empty, dout_full, dout_empty)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    counter_ptr += 2 if OF_VALUES else 1
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes[3], 2 * ROWS)
    gl.warp_specialize(
        [
            (differ, (0, total, memory, barriers, tickets, SIDES, FACTORS, SCALE, SIZES, SHARE, ROWS, QUERIES, STAGES,
                      OF_VALUES, places_ptr is not None)),
            (differ, (1, total, memory, barriers, tickets, SIDES, FACTORS, SCALE, SIZES, SHARE, ROWS, QUERIES, STAGES,
                      OF_VALUES, places_ptr is not None)),
            (fetch, (arrays, memory, barriers, tickets, t, tiles, counter_ptr, places_ptr, sizes, SIDES, SHARE,
                     2 * ROWS, QUERIES, STAGES, OF_VALUES)),
        ],
        [WARPS, 1],
        [REGISTERS, FEW_REGISTERS],
    )  # fmt: skip
