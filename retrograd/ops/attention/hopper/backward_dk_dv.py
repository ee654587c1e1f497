"""Attention, backward, on Hopper, heads wider than 128: dk, dv, or both, in a walk over the queries. Symbols:
../README.md.

A program takes tiles of keys, one after the other, and walks over the tiles of queries that see each, as
`backward_fused` does. Its warps are of two kinds:
    fetch          one warp, the producer: copies k, and tile after tile of q and dout with their rows' base, by TMA;
                   except for dv alone, also v and delta
    differentiate  two groups, the consumers, each with half of the keys: for dk two products, ds in registers, and a
                   product that adds to dk; for dv one product, p in registers, and a product that adds to dv, of one
                   half of the queries after the other; for both see `backward_both`
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import tma_store
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, barriers, release, ring_of, stage_of, wait_full

from .backward_both import differentiate_both
from .backward_fused import FEW_REGISTERS, Arrays, Rings, fetch
from .schedule import at_step, tiles_of_head
from .scores import deltas_from, differences_from, probabilities_from
from .tickets import draw, has_tile, of_keys, ring_of_tickets
from .walk import at_border, keys_of, steps_unmasked
from .wgmma import (
    WARPS,
    add_products,
    allocate,
    first_columns,
    halves,
    matrix,
    more_columns,
    of_products,
    over_columns,
    pieces,
    store_sums,
    wait_for_sums,
)


@gluon.jit
def differentiate_one(W: gl.constexpr, out, rings, tickets, OPTIONS: gl.constexpr, OF_VALUES: gl.constexpr):
    """dk, or dv, of the keys of group W in the program's tiles. Pairs are (keys, queries)."""
    ROWS: gl.constexpr = OPTIONS.keys // 2
    QUERIES: gl.constexpr = OPTIONS.queries
    HALF: gl.constexpr = QUERIES // 2
    TYPE: gl.constexpr = rings.q.blocks.dtype
    SIZE: gl.constexpr = OPTIONS.value_size if OF_VALUES else OPTIONS.size
    LESS: gl.constexpr = first_columns(SIZE)
    # Without a rest, `rest` has columns that nothing reads, since it cannot have none.
    REST: gl.constexpr = more_columns(SIZE) or 64
    none = gl.zeros([ROWS, QUERIES], gl.float32, of_products(QUERIES))
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        end = n + OPTIONS.share * of_keys(tickets, number, "steps")
        first, until = steps_unmasked(end, tickets, number, OPTIONS)
        total = gl.zeros([ROWS, LESS], gl.float32, of_products(LESS))
        rest = gl.zeros([ROWS, REST], gl.float32, of_products(REST))
        while n < end:
            border = at_border(n, first, until, OPTIONS)
            q_stage, dout_stage = stage_of(n, OPTIONS.q_stages), stage_of(n, OPTIONS.dout_stages)
            q_tile, dout_tile = matrix(rings.q.blocks.index(q_stage)), matrix(rings.dout.blocks.index(dout_stage))
            wait_full(rings.q, n)
            own = forget(gl.to_tensor(W))
            s = over_columns(matrix(rings.k.blocks.index(own)), q_tile, none, OPTIONS.size)
            wait_full(rings.dout, n)
            if OF_VALUES:
                # The products of the first half run beside the exponentials of the second.
                s0, s1 = halves(warpgroup_mma_wait(0, deps=[s]))
                p = probabilities_from(0, W, s0, border, n, end, rings, tickets, number, OPTIONS).to(TYPE)
                total, rest = add_products(p, dout_tile.slice(0, HALF), total, rest, SIZE)
                p = probabilities_from(HALF, W, s1, border, n, end, rings, tickets, number, OPTIONS).to(TYPE)
                total, rest = add_products(p, dout_tile.slice(HALF, HALF), total, rest, SIZE)
            else:
                dp = over_columns(matrix(rings.v.blocks.index(own)), dout_tile, none, OPTIONS.value_size)
                s = warpgroup_mma_wait(pieces(OPTIONS.value_size), deps=[s])
                p = probabilities_from(0, W, s, border, n, end, rings, tickets, number, OPTIONS)
                delta = deltas_from(0, p, border, n, end, rings, tickets, number, OPTIONS)
                dp = warpgroup_mma_wait(0, deps=[dp])
                ds = differences_from(0, p, dp, delta, n, rings, OPTIONS)
                total, rest = add_products(ds, q_tile, total, rest, SIZE)
            # After the start of the products, whose operands come from base and delta: these have been used.
            release(rings.q if OF_VALUES else rings.dout, n)
            total, rest = wait_for_sums(total, rest, SIZE)
            release(rings.dout if OF_VALUES else rings.q, n)
            n += 1
        batch, first_k, at, keys, group = keys_of(tickets, number)
        # Only this group's products read its part of k, and these are done: the result is staged there.
        staged = rings.k.blocks.index(W)._reinterpret(TYPE, out.block_shape, out.layout)
        store_sums(total, rest, SIZE, 1.0 if OF_VALUES else OPTIONS.scale, matrix(staged))
        fence_async_shared()
        tma_store(out, at_step(out, batch, first_k, at + W * ROWS, keys, group), staged)
        if not OF_VALUES:
            release(rings.v, number)
        tma.store_wait(0)
        release(rings.k, number)
        release(tickets, number)
        number += 1
        wait_full(tickets, number)


@gluon.jit
def differentiate(
    W: gl.constexpr, dk, dv, rings, tickets, OPTIONS: gl.constexpr, OF_KEYS: gl.constexpr, OF_VALUES: gl.constexpr
):
    """A consumer: dk, dv or both of the keys of group W in the program's tiles."""
    if OF_KEYS and OF_VALUES:
        differentiate_both(W, dk, dv, rings, tickets, OPTIONS)
    elif OF_KEYS:
        differentiate_one(W, dk, rings, tickets, OPTIONS, False)
    else:
        differentiate_one(W, dv, rings, tickets, OPTIONS, True)


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
    dk,
    dv,
    sizes,
    OPTIONS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """dk and dv, or one of them. Tensor descriptors: q, k, v, dout; base, delta, as `deltas` has stored them; dk, dv.
    counter: 0 at first; counter[1] for dk, or both, counter[2] for dv alone. tile_list, runs: as `forward`.
    """
    OF_KEYS: gl.constexpr = dk is not None
    OF_VALUES: gl.constexpr = dv is not None
    Q_STAGES: gl.constexpr = OPTIONS.q_stages
    DOUT_STAGES: gl.constexpr = OPTIONS.dout_stages
    q_blocks = allocate(q, Q_STAGES)
    k_blocks = allocate(k, 2)
    dout_blocks = allocate(dout, DOUT_STAGES)
    base_blocks = allocate(base, Q_STAGES)
    k_ring = Ring(k_blocks, None, barriers(1, 2))
    q_ring, dout_ring = ring_of(q_blocks, Q_STAGES, 2), ring_of(dout_blocks, DOUT_STAGES, 2)
    if not OF_KEYS:  # not used
        v_ring, delta_blocks = k_ring, base_blocks
    else:
        v_blocks = allocate(v, 2)
        delta_blocks = allocate(delta, DOUT_STAGES)
        v_ring = Ring(v_blocks, None, barriers(1, 2))
    tickets = ring_of_tickets(2)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout, base, delta)
    rings = Rings(q_ring, k_ring, v_ring, dout_ring, base_blocks, delta_blocks)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    counter_ptr += 1 if OF_KEYS else 2
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, OPTIONS.keys)
    gl.warp_specialize(
        [
            (differentiate, (0, dk, dv, rings, tickets, OPTIONS, OF_KEYS, OF_VALUES)),
            (differentiate, (1, dk, dv, rings, tickets, OPTIONS, OF_KEYS, OF_VALUES)),
            (fetch, (arrays, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS, not OF_KEYS)),
        ],
        [WARPS, 1],
        [OPTIONS.registers, FEW_REGISTERS],
    )
