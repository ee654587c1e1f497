"""Attention, backward, on Hopper, heads wider than 128: dk, or dv, in a walk over the queries. Symbols: ../README.md.

A program takes tiles of keys, one after the other, and walks over the tiles of queries that see each, as
`backward_fused` does. Its warps are of two kinds:
    fetch          one warp, the producer: copies k, and tile after tile of q and dout with their rows' base, by TMA;
                   for dk also v, and delta
    differentiate  two groups, the consumers, each with half of the keys: for dk two products, ds in registers, and a
                   product that adds to dk; for dv one product, p in registers, and a product that adds to dv
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
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import barriers, release, ring_of, stage_of, wait_full

from .backward_fused import FEW_REGISTERS, Arrays, Held, Rings, fetch
from .schedule import at_step, tiles_of_head
from .scores import base_of, deltas_of, differences, probabilities
from .tickets import draw, has_tile, of_keys, ring_of_tickets
from .walk import at_border, keys_of, steps_unmasked
from .wgmma import WARPS, allocate, first_columns, matrix, more_columns, over_columns, pieces


@gluon.jit
def differentiate(W: gl.constexpr, total_desc, rings, tickets, OPTIONS: gl.constexpr, OF_VALUES: gl.constexpr):
    """A consumer: dk or dv of the keys of group W in the program's tiles. Pairs are (keys, queries)."""
    ROWS: gl.constexpr = OPTIONS.keys // 2
    QUERIES: gl.constexpr = OPTIONS.queries
    TYPE: gl.constexpr = rings.q.blocks.dtype
    LESS: gl.constexpr = first_columns(OPTIONS.value_size if OF_VALUES else OPTIONS.size)
    REST: gl.constexpr = more_columns(OPTIONS.value_size if OF_VALUES else OPTIONS.size)
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, QUERIES, 16])
    OF_LESS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, LESS, 16])
    # Without a rest, `rest` has columns that nothing reads, since it cannot have none.
    OF_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, REST or 64, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OF_LESS, 2)
    LEFT_REST: gl.constexpr = gl.DotOperandLayout(0, OF_REST, 2)
    COLUMN: gl.constexpr = gl.SliceLayout(0, S)
    none = gl.zeros([ROWS, QUERIES], gl.float32, S)
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        end = n + OPTIONS.share * of_keys(tickets, number, "steps")
        first, until = steps_unmasked(end, tickets, number, OPTIONS)
        total = gl.zeros([ROWS, LESS], gl.float32, OF_LESS)
        rest = gl.zeros([ROWS, REST or 64], gl.float32, OF_REST)
        while n < end:
            border = at_border(n, first, until, OPTIONS)
            q_stage, dout_stage = stage_of(n, OPTIONS.q_stages), stage_of(n, OPTIONS.dout_stages)
            q_tile, dout_tile = matrix(rings.q.blocks.index(q_stage)), matrix(rings.dout.blocks.index(dout_stage))
            wait_full(rings.q, n)
            own = forget(gl.to_tensor(W))
            s = over_columns(matrix(rings.k.blocks.index(own)), q_tile, none, OPTIONS.size)
            wait_full(rings.dout, n)
            base = base_of(rings.base, q_stage, 0, QUERIES, COLUMN)
            if OF_VALUES:
                s = warpgroup_mma_wait(0, deps=[s])
                p = probabilities(s, -base, border, W * ROWS, 0, end - n, tickets, number, OPTIONS)
                pairs, tile = p.to(TYPE), dout_tile
            else:
                dp = over_columns(matrix(rings.v.blocks.index(own)), dout_tile, none, OPTIONS.value_size)
                s = warpgroup_mma_wait(pieces(OPTIONS.value_size), deps=[s])
                p = probabilities(s, -base, border, W * ROWS, 0, end - n, tickets, number, OPTIONS)
                delta = deltas_of(
                    rings.delta.index(dout_stage), border, 0, QUERIES, end - n, tickets, number, OPTIONS, COLUMN
                )
                dp = warpgroup_mma_wait(0, deps=[dp])
                if OPTIONS.factors.inside is not None:
                    base = base_of(rings.base, q_stage, 0, QUERIES, COLUMN)
                ds = differences(p, dp, base[None, :], delta[None, :], OPTIONS)
                pairs, tile = ds.to(TYPE), q_tile
            left = gl.convert_layout(pairs, LEFT, assert_trivial=True)
            total = warpgroup_mma(left, tile.slice(0, LESS, dim=1), total, is_async=True)
            if REST:
                left = gl.convert_layout(pairs, LEFT_REST, assert_trivial=True)
                rest = warpgroup_mma(left, tile.slice(LESS, REST, dim=1), rest, is_async=True)
            # After the start of the products, whose operands come from base and delta: these have been read.
            release(rings.q if OF_VALUES else rings.dout, n)
            if REST:
                total, rest = warpgroup_mma_wait(0, deps=[total, rest])
            else:
                total = warpgroup_mma_wait(0, deps=[total])
            release(rings.dout if OF_VALUES else rings.q, n)
            n += 1
        batch, first_k, at, keys, group = keys_of(tickets, number)
        # Only this group's products read its part of k, and these are done: the result is staged there.
        staged = rings.k.blocks.index(W)._reinterpret(TYPE, total_desc.block_shape, total_desc.layout)
        FACTOR: gl.constexpr = 1.0 if OF_VALUES else OPTIONS.scale
        matrix(staged).slice(0, LESS, dim=1).store((total * FACTOR).to(TYPE))
        if REST:
            matrix(staged).slice(LESS, REST, dim=1).store((rest * FACTOR).to(TYPE))
        fence_async_shared()
        tma_store(total_desc, at_step(total_desc, batch, first_k, at + W * ROWS, keys, group), staged)
        if not OF_VALUES:
            mbarrier.arrive(rings.v.empty)
        tma.store_wait(0)
        mbarrier.arrive(rings.k.empty)
        release(tickets, number)
        number += 1
        wait_full(tickets, number)


@gluon.jit(do_not_specialize=["sizes"])
def backward_dk_dv(
    q,
    k,
    v,
    dout,
    base,
    delta,
    tile_list_ptr,
    runs_ptr,
    counter_ptr,
    total,
    sizes,
    OPTIONS: gl.constexpr,
    OF_VALUES: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dk; dv with OF_VALUES. Tensor descriptors: q, k, v, dout; base and delta, as `deltas` has stored them; total,
    which is dk or dv. counter: 0 at first; counter[1] for dk, counter[2] for dv. tile_list, runs: as `forward`.
    """
    Q_STAGES: gl.constexpr = OPTIONS.q_stages
    DOUT_STAGES: gl.constexpr = OPTIONS.dout_stages
    q_blocks = allocate(q, Q_STAGES)
    k_blocks = allocate(k, 2)
    dout_blocks = allocate(dout, DOUT_STAGES)
    base_blocks = allocate(base, Q_STAGES)
    k_held = Held(k_blocks, barriers(1, 2).index(0))
    q_ring, dout_ring = ring_of(q_blocks, Q_STAGES, 2), ring_of(dout_blocks, DOUT_STAGES, 2)
    if OF_VALUES:  # not used
        v_held, delta_blocks = k_held, base_blocks
    else:
        v_blocks = allocate(v, 2)
        delta_blocks = allocate(delta, DOUT_STAGES)
        v_held = Held(v_blocks, barriers(1, 2).index(0))
    tickets = ring_of_tickets(2)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout, base, delta)
    rings = Rings(q_ring, k_held, v_held, dout_ring, base_blocks, delta_blocks)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    counter_ptr += 2 if OF_VALUES else 1
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, OPTIONS.keys)
    gl.warp_specialize(
        [
            (differentiate, (0, total, rings, tickets, OPTIONS, OF_VALUES)),
            (differentiate, (1, total, rings, tickets, OPTIONS, OF_VALUES)),
            (fetch, (arrays, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS, OF_VALUES)),
        ],
        [WARPS, 1],
        [OPTIONS.registers, FEW_REGISTERS],
    )
