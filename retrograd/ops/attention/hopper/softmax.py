"""Attention, forward, on Hopper: the running softmax of a walk over blocks of keys. Symbols: ../README.md."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from retrograd.core.kernels.gluon import before_waits
from retrograd.core.kernels.rings import release, release_by_warps, stage_of, wait_full

from .scores import bias_of, read_bias, scores
from .wgmma import WARPS, matrix, over_panels, panels_of

# Named barriers of blocks that are released by warps, one for each of two stages. Triton has 0 and 1, and one for each
# kind of warps from 2 on.
K_FREE, V_FREE = gl.constexpr(8), gl.constexpr(10)
HIDDEN = gl.constexpr(-2.3e38)  # scores below it, times log2(e), are not above the least number of fp32


class Sums(NamedTuple):
    """The largest score so far, the sums of exponentials and of values before a block, and the exponentials of it."""

    largest: Any
    total: Any
    result: Any
    p: Any


@gluon.jit
def softmax(s, largest, FACTOR: gl.constexpr, BIAS: gl.constexpr = False):
    """The new largest score, the factor of older sums, the exponentials.

    BIAS: whether scores have one, which may hide a key by the least number that there is instead of -inf.
    """
    more = gl.maximum(largest, gl.max(s, 1))
    if BIAS:
        safe = gl.where(more < HIDDEN, 0.0, more)
    else:
        safe = gl.where(more == float("-inf"), 0.0, more)
    before = gl.exp2((largest - safe) * FACTOR)  # 1 if the largest stays, as in a block that a query does not see
    # Of two products the compiler might round either one, so which one is fused is said here.
    return more, before, gl.exp2(gl.fma(s, FACTOR, -(safe * FACTOR)[:, None]))


@gluon.jit
def part_sums(p):
    """Sums over the keys that one thread holds: (queries, 8)."""
    return gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), 1)


@gluon.jit
def add_parts(total, before, parts):
    """The sums of exponentials with those of another block."""
    return gl.fma(total, before[:, None], parts)


@gluon.jit
def release_block(ring, n, FREE: gl.constexpr, OPTIONS: gl.constexpr):
    """This group has read block n of k or v."""
    if OPTIONS.by_warps:
        release_by_warps(ring, n, FREE, OPTIONS.groups * (32 * WARPS) + 32)
    else:
        release(ring, n)


@gluon.jit
def add_block(sums, n, q, none, rings, i, block, border, queries, keys, OPTIONS: gl.constexpr, pairs=None):
    """Add the values of block n, and compute the exponentials of the one after it, number `block` of its sequence.

    pairs: a bias that is read from memory, or None; see `read_bias`.
    """
    largest, total, result, p = sums
    ROW: gl.constexpr = gl.SliceLayout(1, result.type.layout)
    PART: gl.constexpr = gl.SliceLayout(1, total.type.layout)
    LEFT: gl.constexpr = p.type.layout
    S: gl.constexpr = none.type.layout
    stage, next_stage = stage_of(n, OPTIONS.stages), stage_of(n + 1, OPTIONS.stages)
    wait_full(rings.k, n + 1)
    s = over_panels(q, panels_of(rings.k.blocks, next_stage, OPTIONS.panels), none, OPTIONS.size, OPTIONS.panels)
    bias = None
    if rings.bias is not None:
        bias = bias_of(rings.bias.index(next_stage), S)  # while products run
    elif pairs is not None:
        bias = read_bias(pairs, i, block, queries, keys, none.shape[1], S)
    wait_full(rings.v, n)
    result = warpgroup_mma(p, matrix(rings.v.blocks.index(stage)), result, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    release_block(rings.k, n + 1, K_FREE, OPTIONS)
    s = scores(s, i, block, border, queries, keys, OPTIONS, bias)
    largest, before, p = softmax(s, largest, OPTIONS.factors.exponent, bias is not None)
    total = add_parts(total, gl.convert_layout(before, PART, assert_trivial=True), part_sums(p))
    if OPTIONS.beside:
        largest = before_waits(largest)
    result = warpgroup_mma_wait(0, deps=[result])
    release_block(rings.v, n, V_FREE, OPTIONS)
    result = result * gl.convert_layout(before, ROW, assert_trivial=True)[:, None]
    p = gl.convert_layout(p.to(rings.v.blocks.dtype), LEFT, assert_trivial=True)
    return Sums(largest, total, result, p)
