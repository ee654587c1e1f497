"""Attention, backward, on Hopper: dk and dv of heads to 192 with values to 128 in one walk. Symbols: ../README.md.

A program takes tiles of keys, one after the other, and walks over the tiles of queries that see each, as
`backward_fused` does. Its warps are of two kinds:
    fetch          one warp, the producer: copies k and v, and tile after tile of q and dout with their rows' base and
                   delta, by TMA
    differentiate  two groups, the consumers, each with half of the keys: scores, p, dp, ds, dk and dv
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma_wait,
)

from retrograd.core.kernels.gluon import tma_store
from retrograd.core.kernels.numerics import forget, let_next_start, wait_for_previous
from retrograd.core.kernels.rings import Ring, barriers, release, ring_of, stage_of, wait_full

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
)


@gluon.jit
def differentiate(W: gl.constexpr, dk, dv, rings, tickets, OPTIONS: gl.constexpr):
    """dk and dv of the keys of group W in the program's tiles. Pairs are (keys, queries).

    p, dp and ds are of one half of a step's queries after the other: a thread has registers for dk, dv and half of
    them, and the products of the first half run beside the exponentials of the second.
    """
    ROWS: gl.constexpr = OPTIONS.keys // 2
    QUERIES: gl.constexpr = OPTIONS.queries
    HALF: gl.constexpr = QUERIES // 2
    TYPE: gl.constexpr = rings.q.blocks.dtype
    D: gl.constexpr = OPTIONS.size
    V: gl.constexpr = OPTIONS.value_size
    gl.static_assert(more_columns(D) > 0 and more_columns(V) == 0)
    none = gl.zeros([ROWS, QUERIES], gl.float32, of_products(QUERIES))
    none_half = gl.zeros([ROWS, HALF], gl.float32, of_products(HALF))
    n, number = 0, 0
    wait_full(tickets, 0)
    while has_tile(tickets, number):
        end = n + OPTIONS.share * of_keys(tickets, number, "steps")
        first, until = steps_unmasked(end, tickets, number, OPTIONS)
        total_k = gl.zeros([ROWS, first_columns(D)], gl.float32, of_products(first_columns(D)))
        rest_k = gl.zeros([ROWS, more_columns(D)], gl.float32, of_products(more_columns(D)))
        total_v = gl.zeros([ROWS, V], gl.float32, of_products(V))
        while n < end:
            border = at_border(n, first, until, OPTIONS)
            q_stage, dout_stage = stage_of(n, OPTIONS.q_stages), stage_of(n, OPTIONS.dout_stages)
            q_tile, dout_tile = matrix(rings.q.blocks.index(q_stage)), matrix(rings.dout.blocks.index(dout_stage))
            q0, q1 = q_tile.slice(0, HALF), q_tile.slice(HALF, HALF)
            dout0, dout1 = dout_tile.slice(0, HALF), dout_tile.slice(HALF, HALF)
            wait_full(rings.q, n)
            own = forget(gl.to_tensor(W))
            s = over_columns(matrix(rings.k.blocks.index(own)), q_tile, none, D)
            wait_full(rings.dout, n)
            v = matrix(rings.v.blocks.index(own))
            dp = over_columns(v, dout0, none_half, V)
            s0, s1 = halves(warpgroup_mma_wait(pieces(V), deps=[s]))
            p = probabilities_from(0, W, s0, border, n, end, rings, tickets, number, OPTIONS)
            delta = deltas_from(0, p, border, n, end, rings, tickets, number, OPTIONS)
            dp = warpgroup_mma_wait(0, deps=[dp])
            ds = differences_from(0, p, dp, delta, n, rings, OPTIONS)
            dp = over_columns(v, dout1, none_half, V)
            total_v, _ = add_products(p.to(TYPE), dout0, total_v, total_v, V)
            total_k, rest_k = add_products(ds, q0, total_k, rest_k, D)
            p = probabilities_from(HALF, W, s1, border, n, end, rings, tickets, number, OPTIONS)
            delta = deltas_from(HALF, p, border, n, end, rings, tickets, number, OPTIONS)
            dp = warpgroup_mma_wait(pieces(V) + pieces(D), deps=[dp])  # those that add have been started after it
            ds = differences_from(HALF, p, dp, delta, n, rings, OPTIONS)
            total_v, _ = add_products(p.to(TYPE), dout1, total_v, total_v, V)
            total_k, rest_k = add_products(ds, q1, total_k, rest_k, D)
            total_v, total_k, rest_k = warpgroup_mma_wait(0, deps=[total_v, total_k, rest_k])
            release(rings.dout, n)
            release(rings.q, n)
            n += 1
        batch, first_k, at, keys, group = keys_of(tickets, number)
        # Only this group's products read its parts of k and v, and these are done: the results are staged there.
        staged_k = rings.k.blocks.index(W)._reinterpret(TYPE, dk.block_shape, dk.layout)
        staged_v = rings.v.blocks.index(W)._reinterpret(TYPE, dv.block_shape, dv.layout)
        store_sums(total_k, rest_k, D, OPTIONS.scale, matrix(staged_k))
        store_sums(total_v, total_v, V, 1.0, matrix(staged_v))
        fence_async_shared()
        tma_store(dk, at_step(dk, batch, first_k, at + W * ROWS, keys, group), staged_k)
        tma_store(dv, at_step(dv, batch, first_k, at + W * ROWS, keys, group), staged_v)
        tma.store_wait(0)
        release(rings.v, number)
        release(rings.k, number)
        release(tickets, number)
        number += 1
        wait_full(tickets, number)


@gluon.jit(do_not_specialize=["sizes"])
def backward_both(
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
    q_ring = ring_of(allocate(q, OPTIONS.q_stages), OPTIONS.q_stages, 2)
    dout_ring = ring_of(allocate(dout, OPTIONS.dout_stages), OPTIONS.dout_stages, 2)
    k_ring = Ring(allocate(k, 2), None, barriers(1, 2))
    v_ring = Ring(allocate(v, 2), None, barriers(1, 2))
    of_base, of_delta = allocate(base, OPTIONS.q_stages), allocate(delta, OPTIONS.dout_stages)
    tickets = ring_of_tickets(2)
    fence_async_shared()
    arrays = Arrays(q, k, v, dout, base, delta)
    rings = Rings(q_ring, k_ring, v_ring, dout_ring, of_base, of_delta)
    wait_for_previous(OVERLAP)
    let_next_start(OVERLAP)
    counter_ptr += 1
    t = draw(counter_ptr)
    tiles = tiles_of_head(runs_ptr, sizes.tiles, OPTIONS.keys)
    gl.warp_specialize(
        [
            (differentiate, (0, dk, dv, rings, tickets, OPTIONS)),
            (differentiate, (1, dk, dv, rings, tickets, OPTIONS)),
            (fetch, (arrays, rings, tickets, t, tiles, counter_ptr, tile_list_ptr, sizes, OPTIONS)),
        ],
        [WARPS, 1],
        [OPTIONS.registers, FEW_REGISTERS],
    )
