"""Attention, backward, on Hopper: dk and dv of wide heads in one walk, each by a group of warps. Symbols: ../README.md.

A program takes tiles of keys, one after the other, and walks over the tiles of queries that see each, as
`backward_fused` does. No thread could hold both gradients of a key, and no product is computed twice. Its warps:
    fetch                 one warp, the producer: copies k and v, and tile after tile of q and dout with their rows'
                          base and delta, by TMA
    differentiate_values  a group: scores, p, which it leaves to the other one, and dv
    differentiate_keys    a group: dp, ds from the p of the other one, and dk
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import tma_store
from retrograd.core.kernels.named_barriers import sync
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, acquire, barriers, release, ring_of, stage_of, wait_full

from .backward_fused import FEW_REGISTERS, Arrays, Rings, fetch
from .schedule import at_step, tiles_of_head
from .scores import deltas_from, differences_from, probabilities_from
from .tickets import draw, has_tile, of_keys, ring_of_tickets
from .walk import at_border, keys_of, steps_unmasked
from .wgmma import (
    WARPS,
    add_products,
    allocate,
    from_order_of_sums,
    in_order_of_sums,
    matrix,
    no_sums,
    of_products,
    over_columns,
    pieces,
    store_sums,
    wait_for_sums,
)

P_STAGES = gl.constexpr(2)
DONE = gl.constexpr(4)  # a named barrier
BOTH_GROUPS = gl.constexpr(2 * 32 * WARPS.value)


@gluon.jit
def products_of_step(n, held, ring, none, SIZE: gl.constexpr):
    """Start the products of the tile of keys in `held` with block n of a ring, when that is there."""
    wait_full(ring, n)
    left = matrix(held.blocks.index(forget(gl.to_tensor(0))))
    return over_columns(left, matrix(ring.blocks.index(stage_of(n, ring.full.shape[0]))), none, SIZE)


@gluon.jit
def store_gradient(out, total, rest, held, tickets, number, SIZE: gl.constexpr, FACTOR: gl.constexpr):
    """Store a gradient of the tile, staged where k or v was; release that and the ticket."""
    sync(DONE, BOTH_GROUPS)  # the products of both are done with k and v
    batch, first_k, at, keys, group = keys_of(tickets, number)
    staged = held.blocks.index(0)._reinterpret(out.dtype, out.block_shape, out.layout)
    store_sums(total, rest, SIZE, FACTOR, matrix(staged))
    fence_async_shared()
    tma_store(out, at_step(out, batch, first_k, at, keys, group), staged)
    tma.store_wait(0)
    release(held, number)
    release(tickets, number)


@gluon.jit
def differentiate_values(dv, rings, p_ring, tickets, OPTIONS: gl.constexpr):
    """p and dv of the program's tiles. Pairs are (keys, queries)."""
    KEYS: gl.constexpr = OPTIONS.keys
    QUERIES: gl.constexpr = OPTIONS.queries
    SIZE: gl.constexpr = OPTIONS.value_size
    none = gl.zeros([KEYS, QUERIES], gl.float32, of_products(QUERIES))
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        begin, end = n, n + OPTIONS.share * of_keys(tickets, number, "steps")
        first, until = steps_unmasked(end, tickets, number, OPTIONS)
        total, rest = no_sums(KEYS, SIZE)
        s = none
        if end > begin:
            s = warpgroup_mma_wait(0, deps=[products_of_step(n, rings.k, rings.q, none, OPTIONS.size)])
        while n < end:
            border = at_border(n, first, until, OPTIONS)
            p = probabilities_from(0, 0, s, border, n, end, rings, tickets, number, OPTIONS)
            stage = acquire(p_ring, n)
            p_ring.blocks.index(stage).store(in_order_of_sums(p))
            mbarrier.arrive(p_ring.full.index(stage))
            wait_full(rings.dout, n)
            dout = matrix(rings.dout.blocks.index(stage_of(n, OPTIONS.dout_stages)))
            total, rest = add_products(p.to(rings.q.blocks.dtype), dout, total, rest, SIZE)
            # Of the last step once more, so that no product is in a branch.
            s = products_of_step(gl.minimum(n + 1, end - 1), rings.k, rings.q, none, OPTIONS.size)
            total, rest = wait_for_sums(total, rest, SIZE, pieces(OPTIONS.size))
            release(rings.dout, n)
            s = warpgroup_mma_wait(0, deps=[s])
            release(rings.q, n)
            n += 1
        store_gradient(dv, total, rest, rings.v, tickets, number, SIZE, 1.0)
        number += 1
        wait_full(tickets, number)


@gluon.jit
def differentiate_keys(dk, rings, p_ring, tickets, OPTIONS: gl.constexpr):
    """dk of the program's tiles."""
    KEYS: gl.constexpr = OPTIONS.keys
    QUERIES: gl.constexpr = OPTIONS.queries
    SIZE: gl.constexpr = OPTIONS.size
    none = gl.zeros([KEYS, QUERIES], gl.float32, of_products(QUERIES))
    STORED: gl.constexpr = in_order_of_sums(none).type.layout
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        begin, end = n, n + OPTIONS.share * of_keys(tickets, number, "steps")
        first, until = steps_unmasked(end, tickets, number, OPTIONS)
        total, rest = no_sums(KEYS, SIZE)
        dp = none
        if end > begin:
            dp = warpgroup_mma_wait(0, deps=[products_of_step(n, rings.v, rings.dout, none, OPTIONS.value_size)])
        while n < end:
            border = at_border(n, first, until, OPTIONS)
            wait_full(rings.q, n)
            wait_full(p_ring, n)
            p = from_order_of_sums(p_ring.blocks.index(stage_of(n, P_STAGES)).load(STORED))
            delta = deltas_from(0, p, border, n, end, rings, tickets, number, OPTIONS)
            ds = differences_from(0, p, dp, delta, n, rings, OPTIONS)
            q = matrix(rings.q.blocks.index(stage_of(n, OPTIONS.q_stages)))
            total, rest = add_products(ds, q, total, rest, SIZE)
            release(p_ring, n)
            if n + 1 < end:
                release(rings.dout, n)
            # Of the last step once more, so that no product is in a branch.
            dp = products_of_step(gl.minimum(n + 1, end - 1), rings.v, rings.dout, none, OPTIONS.value_size)
            total, rest = wait_for_sums(total, rest, SIZE, pieces(OPTIONS.value_size))
            release(rings.q, n)
            dp = warpgroup_mma_wait(0, deps=[dp])
            if n + 1 == end:
                release(rings.dout, n)
            n += 1
        store_gradient(dk, total, rest, rings.k, tickets, number, SIZE, OPTIONS.scale)
        number += 1
        wait_full(tickets, number)


@gluon.jit(do_not_specialize=["sizes"])
def backward_apart(
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
    """Tensor descriptors: q, k, v, dout, dk, dv; base, delta, as `deltas` has stored them. counter[1]: 0 at first.
    tile_list, runs: as `forward`.
    """
    gl.static_assert(OPTIONS.q_stages > 1 and OPTIONS.dout_stages > 1)  # a block is held until the next is there
    q_ring = ring_of(allocate(q, OPTIONS.q_stages), OPTIONS.q_stages, 2)
    dout_ring = ring_of(allocate(dout, OPTIONS.dout_stages), OPTIONS.dout_stages, 2)
    k_ring = Ring(allocate(k, 1), None, barriers(1, 1))
    v_ring = Ring(allocate(v, 1), None, barriers(1, 1))
    p_layout: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    p_blocks = gl.allocate_shared_memory(gl.float32, [P_STAGES, OPTIONS.keys, OPTIONS.queries], p_layout)
    p_ring = ring_of(p_blocks, P_STAGES, 1)
    tickets = ring_of_tickets(2)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout, base, delta)
    of_base, of_delta = allocate(base, OPTIONS.q_stages), allocate(delta, OPTIONS.dout_stages)
    rings = Rings(q_ring, k_ring, v_ring, dout_ring, of_base, of_delta)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    counter_ptr += 1
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, OPTIONS.keys)
    gl.warp_specialize(
        [
            (differentiate_values, (dv, rings, p_ring, tickets, OPTIONS)),
            (differentiate_keys, (dk, rings, p_ring, tickets, OPTIONS)),
            (fetch, (arrays, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS)),
        ],
        [WARPS, 1],
        [OPTIONS.registers, FEW_REGISTERS],
    )
