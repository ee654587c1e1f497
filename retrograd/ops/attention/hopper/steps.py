"""Attention, backward, on Hopper: what a step of a walk computes of its pairs. Symbols: ../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from retrograd.core.kernels.gluon import lg2, tma_store

from .forward import bounded
from .tickets import let_go, read
from .tiles import at_step

# Numbers of a ticket: whether there is a tile; what `tile_of_keys` tells of it; what `queries_seen` does.
MORE, BATCH, GROUP, FIRST_Q, QUERIES_OF, FIRST_K, KEYS_OF, AT, ROWS_AT, LOW, STEPS = (
    gl.constexpr(i) for i in range(11)
)


@gluon.jit
def walk_of(tickets, turn):
    """Of a ticket: queries and keys of its sequence, its first key; the first tile of queries that sees it."""
    queries, keys, at = read(tickets, turn, QUERIES_OF), read(tickets, turn, KEYS_OF), read(tickets, turn, AT)
    return queries, keys, at, read(tickets, turn, LOW)


@gluon.jit
def step_of(left, group, low, SHARE: gl.constexpr):
    """The head of a step, and the tile of its queries, where so many steps of a walk are left.

    Heads come first: a program that went head by head would wait, at each head's last queries, for all those before it.
    """
    return group * SHARE + (left - 1) % SHARE, low + (left - 1) // SHARE


@gluon.jit
def numbers_of(memory, slot, count, INSTEAD: gl.constexpr, LISTED: gl.constexpr, LAYOUT: gl.constexpr):
    """base or delta of a tile's queries, of which `count` are of the sequence."""
    QUERIES: gl.constexpr = memory.shape[len(memory.shape) - 1]
    numbers = memory.index(slot).reshape([QUERIES]).load(LAYOUT)
    if LISTED:  # behind the sequence are numbers of the next one
        numbers = gl.where(gl.arange(0, QUERIES, LAYOUT) < count, numbers, INSTEAD)
    return numbers


@gluon.jit
def probabilities(
    s, base, j, at, start, queries, keys, SIDES: gl.constexpr, FACTORS: gl.constexpr, KEYS: gl.constexpr,
    QUERIES: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Of products s of keys j with the queries from `start` on; 0 where a pair is not visible.

    The tile of KEYS keys begins at `at`.
    """
    shift = keys - queries
    if FACTORS[0] is not None:
        s = bounded(s, FACTORS[0]) * FACTORS[1]
    p = gl.exp2(gl.fma(s, FACTORS[2], -base[None, :]))
    # Behind the last key, k and v are 0, but p might be too large for a product with 0.
    if SIDES[1] is None:
        if at + KEYS > keys:
            p = gl.where((j < keys)[:, None], p, 0.0)
    elif (at + KEYS - 1 > start + shift + SIDES[1]) | (at + KEYS > keys):
        last = gl.minimum(start + gl.arange(0, QUERIES, LAYOUT) + (shift + SIDES[1]), keys - 1)
        p = gl.where(j[:, None] <= last[None, :], p, 0.0)
    if SIDES[0] is not None:
        if at < start + QUERIES - 1 + shift - SIDES[0]:
            first = start + gl.arange(0, QUERIES, LAYOUT) + (shift - SIDES[0])
            p = gl.where(j[:, None] >= first[None, :], p, 0.0)
    return p


@gluon.jit
def differences(p, dp, base, delta, FACTORS: gl.constexpr):
    """The gradient at products, without scale: p (dp - delta), and the derivative of a softcap.

    The bounded product, the tanh of the softcap, is what p was computed from: log2(p) + base, in units of the cap.
    """
    ds = p * (dp - delta[None, :])
    if FACTORS[0] is not None:
        tanh = (lg2(p) + base[None, :]) * (1.0 / FACTORS[1])
        ds = gl.where(p > 0.0, ds * (1.0 - tanh * tanh), 0.0)
    return ds


@gluon.jit
def store_totals(
    W: gl.constexpr, dk, dv, k_part, v_part, total_k, total_v, memory, barriers, tickets, turn,
):  # fmt: skip
    """Store the sums of a tile of keys, of which two groups of warps, W 0 and 1, have a part each.

    k_part, v_part: the parts' places in those of k and v, which nothing reads any more.
    """
    _, k_s, v_s, _, _, _, _, _, _ = memory
    _, kv_empty, _, _, _, _, _, _, _, _, walked = barriers
    mbarrier.arrive(walked)
    mbarrier.wait(walked, 0)
    k_part.store(total_k.to(k_s.dtype))
    v_part.store(total_v.to(v_s.dtype))
    fence_async_shared()
    mbarrier.arrive(walked)
    if W == 0:
        mbarrier.wait(walked, 1)
        batch, group, first_k = read(tickets, turn, BATCH), read(tickets, turn, GROUP), read(tickets, turn, FIRST_K)
        keys, at = read(tickets, turn, KEYS_OF), read(tickets, turn, AT)
        tma_store(dk, at_step(dk, batch, first_k, at, keys, group), k_s)
        tma_store(dv, at_step(dv, batch, first_k, at, keys, group), v_s)
        tma.store_wait(0)
        mbarrier.arrive(kv_empty)
    let_go(tickets, turn)
