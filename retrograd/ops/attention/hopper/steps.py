"""Attention, backward, on Hopper: what a step of a walk computes of its pairs. Symbols: ../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import lg2

from .forward import bounded
from .products import anew
from .tickets import read
from .tiles import queries_unmasked

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
def steps_unmasked(
    end, tickets, turn, SIDES: gl.constexpr, SHARE: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr,
    LISTED: gl.constexpr,
):  # fmt: skip
    """Of a walk's steps, which end before number `end`: from which to which one all pairs are visible."""
    queries, keys, at, low = walk_of(tickets, turn)
    steps = read(tickets, turn, STEPS)
    bottom, top = queries_unmasked(at, low, steps, queries, keys, SIDES, KEYS, QUERIES, LISTED)
    return end - (top - low) * SHARE, end - (bottom - low) * SHARE


@gluon.jit
def at_border(n, first, until, SIDES: gl.constexpr, LISTED: gl.constexpr):
    """Whether step n is one with pairs that are not visible; the others are from `first` on, before `until`."""
    border = n >= until
    if LISTED or SIDES[0] is not None:
        border = border | (n < first)
    return border


@gluon.jit
def probabilities(
    s, base, border, key, left, tickets, turn, SIDES: gl.constexpr, FACTORS: gl.constexpr, SHARE: gl.constexpr,
    LISTED: gl.constexpr,
):  # fmt: skip
    """Of products s of keys, from number `key` of their tile on, with a tile of queries; 0 where a pair is not visible,
    which is the case only at a `border`. So many steps of the walk are left.
    """
    if FACTORS[0] is not None:
        s = bounded(s, FACTORS[0]) * FACTORS[1]
    p = gl.exp2(gl.fma(s, FACTORS[2], -base[None, :]))
    if border:
        # A ticket's numbers are read where they are needed: there are no registers to keep them in.
        queries, keys, at, low = walk_of(tickets, turn)
        _head, m = step_of(left, 0, low, SHARE)
        i = m * p.shape[1] + gl.arange(0, p.shape[1], gl.SliceLayout(0, p.type.layout))
        j = at + key + gl.arange(0, p.shape[0], gl.SliceLayout(1, p.type.layout))
        # Behind the last key, k and v are 0, but p might be too large for a product with 0.
        if SIDES[1] is None:
            p = gl.where((j < keys)[:, None], p, 0.0)
        else:
            last = gl.minimum(i + (keys - queries + SIDES[1]), keys - 1)
            p = gl.where(j[:, None] <= last[None, :], p, 0.0)
        if SIDES[0] is not None:
            p = gl.where(j[:, None] >= (i + (keys - queries - SIDES[0]))[None, :], p, 0.0)
        if LISTED:
            p = gl.where((i < queries)[None, :], p, 0.0)
    return p


@gluon.jit
def base_of(memory, at, LAYOUT: gl.constexpr):
    """base of the queries of a step; read where it is needed, since there are no registers to keep it in."""
    base = memory.index(anew(at))
    return base.reshape([base.shape[len(base.shape) - 1]]).load(LAYOUT)


@gluon.jit
def deltas_of(
    memory, border, left, tickets, turn, SHARE: gl.constexpr, LISTED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """delta of the queries of a step; 0 behind those of a sequence, where there are numbers of the next one."""
    QUERIES: gl.constexpr = memory.shape[len(memory.shape) - 1]
    delta = memory.reshape([QUERIES]).load(LAYOUT)
    if LISTED:
        if border:
            queries, _keys, _at, low = walk_of(tickets, turn)
            _head, m = step_of(left, 0, low, SHARE)
            delta = gl.where(m * QUERIES + gl.arange(0, QUERIES, LAYOUT) < queries, delta, 0.0)
    return delta


@gluon.jit
def differences(p, dp, base, delta, FACTORS: gl.constexpr):
    """The gradient at products, without scale: p (dp - delta), and the derivative of a softcap. base and delta have two
    axes, too.

    The bounded product, the tanh of the softcap, is what p was computed from: log2(p) + base, in units of the cap.
    """
    ds = p * (dp - delta)
    if FACTORS[0] is not None:
        tanh = (lg2(p) + base) * (1.0 / FACTORS[1])
        ds = gl.where(p == 0.0, 0.0, ds * (1.0 - tanh * tanh))  # a NaN stays
    return ds


@gluon.jit
def keys_of(tickets, turn):
    """Of a ticket, for `at_step`: batch, first step of its sequence's keys, its tile's first key, keys, group."""
    batch, group, first_k = read(tickets, turn, BATCH), read(tickets, turn, GROUP), read(tickets, turn, FIRST_K)
    return batch, first_k, read(tickets, turn, AT), read(tickets, turn, KEYS_OF), group
