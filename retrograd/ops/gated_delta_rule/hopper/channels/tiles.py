"""Pairs of the steps of a block, without their decays, as right operands for each level. Symbols: ../../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import block_barrier

from ..blocks import HALF, C, K
from .halves import CHANNEL, LEVELS, STEP, STEPS, WARPS, X, part_of

TILES = gl.constexpr(24)  # (32, 32), see `pair_tiles`


@gluon.jit
def pair_tiles(memory, scale, DTYPE: gl.constexpr):
    """Pairs of a block without their decays: P and N, each (target, source) with its transpose, by level.

    Tiles (32, 32) in the end: 2 m + h of level 4 in half h, of P with m = 0 or N with m = 1; 4 + m with sources of the
    first half and targets of the second, 6 + m its transpose; 8 + 4 l + 2 m + h of level l in half h.
    """
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([K, STEPS], DTYPE)
    PANEL: gl.constexpr = gl.NVMMASharedLayout.get_default_for([K, HALF], DTYPE)
    rows = memory.rows._reinterpret(DTYPE, [2, K, HALF], PANEL)
    # The first eight tiles, by source half: P of both halves of targets, and N.
    below = memory.tiles._reinterpret(DTYPE, [TILES // 4, K, STEPS], TILE)
    r = gl.arange(0, K, CHANNEL)[:, None]
    own = gl.zeros([K, STEPS], gl.float32, X)
    zero = gl.zeros([K, STEPS], gl.float32, X)
    for h in gl.static_range(2):
        for i in gl.static_range(2):
            sources = part_of(memory.written, i).slice(h * STEPS, STEPS).permute((1, 0))
            if i == 0:
                z = warpgroup_mma(part_of(rows, i), sources, zero, use_acc=False, is_async=True)
            else:
                z = warpgroup_mma(part_of(rows, i), sources, z, is_async=True)
        z = warpgroup_mma_wait(0, deps=[z])
        s = gl.arange(0, STEPS, STEP)[None, :] + h * STEPS
        z *= gl.where(r < C, scale, -1.0)
        own += gl.where(r == s, z, 0.0)
        part_of(below, h).store(gl.where(r % C > s, z, 0.0).to(DTYPE))
    memory.own.store(gl.sum(own, 1))
    fence_async_shared()
    block_barrier()


@gluon.jit
def divide_tiles(memory):
    """The rest of `pair_tiles`."""
    SMALL: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [WARPS, 1], [1, 0])
    tiles = memory.tiles
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([K, STEPS], tiles.dtype)
    fours = tiles._reinterpret(tiles.dtype, [TILES // 4, K, STEPS], TILE)
    t = gl.arange(0, STEPS, gl.SliceLayout(1, SMALL))[:, None]
    s = gl.arange(0, STEPS, gl.SliceLayout(0, SMALL))[None, :]
    p0, p1 = both_ways(part_of(tiles, 0), t, s, SMALL), both_ways(part_of(tiles, 5), t, s, SMALL)
    n0, n1 = both_ways(part_of(tiles, 2), t, s, SMALL), both_ways(part_of(tiles, 7), t, s, SMALL)
    p, n = part_of(tiles, 1).load(SMALL), part_of(tiles, 3).load(SMALL)
    p_back = part_of(tiles, 1).permute((1, 0)).load(SMALL)
    n_back = part_of(tiles, 3).permute((1, 0)).load(SMALL)
    between, within = four_tiles(p, n, p_back, n_back), four_tiles(p0, p1, n0, n1)
    OWN: gl.constexpr = within.type.layout
    t = gl.arange(0, K, gl.SliceLayout(1, OWN))[:, None] % STEPS
    s = gl.arange(0, STEPS, gl.SliceLayout(0, OWN))[None, :]
    block_barrier()
    part_of(fours, 1).store(between)
    for level in gl.static_range(LEVELS):
        there = ((t >> level) ^ (s >> level)) == 1
        part_of(fours, 0 if level == LEVELS - 1 else 2 + level).store(gl.where(there, within, 0.0).to(within.dtype))
    fence_async_shared()
    block_barrier()


@gluon.jit
def four_tiles(x0, x1, x2, x3):
    """Four tiles (32, 32) below one another."""
    return gl.reshape(gl.join(gl.join(x0, x2), gl.join(x1, x3)).permute(2, 3, 0, 1), [K, STEPS])


@gluon.jit
def both_ways(tile, t, s, LAYOUT: gl.constexpr):
    """A tile below its diagonal, and above it the transpose."""
    return gl.where(t > s, tile.load(LAYOUT), tile.permute((1, 0)).load(LAYOUT))
