"""Attention, backward, on Hopper: what a step of a walk computes of its pairs. Symbols: ../README.md."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import lg2

from .forward import bounded
from .products import anew
from .tickets import read
from .tiles import queries_unmasked


class Ticket(NamedTuple):
    """A tile of keys: what `tile_of_keys` and `queries_seen` tell of it. `more` is 1."""

    more: Any
    batch: Any
    group: Any
    first_q: Any
    queries: Any
    first_k: Any
    keys: Any
    at: Any
    rows_at: Any
    low: Any
    steps: Any


@gluon.constexpr_function
def index_of(name):
    """The index of a number in a ticket."""
    return getattr(Ticket(*range(11)), name)


@gluon.jit
def field(tickets, number, NAME: gl.constexpr):
    """Read a number of ticket `number` by its name."""
    return read(tickets, number, index_of(NAME))


@gluon.jit
def walk_of(tickets, number):
    """Of a ticket: queries and keys of its sequence, its first key; the first tile of queries that sees it."""
    queries, keys = field(tickets, number, "queries"), field(tickets, number, "keys")
    return queries, keys, field(tickets, number, "at"), field(tickets, number, "low")


@gluon.jit
def step_of(left, group, low, SHARE: gl.constexpr):
    """The head of a step, and the tile of its queries. left: steps of the walk, with this one.

    Heads come first: a program that went head by head would wait, at each head's last queries, for all those before it.
    """
    return group * SHARE + (left - 1) % SHARE, low + (left - 1) // SHARE


@gluon.jit
def steps_unmasked(end, tickets, number, OPTIONS: gl.constexpr):
    """The range of a walk's steps that need no mask; `end` is the number after its last step."""
    WINDOW: gl.constexpr = OPTIONS.window
    queries, keys, at, low = walk_of(tickets, number)
    steps = field(tickets, number, "steps")
    bottom, top = queries_unmasked(at, low, steps, queries, keys, WINDOW, OPTIONS.keys, OPTIONS.queries, OPTIONS.listed)
    return end - (top - low) * OPTIONS.share, end - (bottom - low) * OPTIONS.share


@gluon.jit
def at_border(n, first, until, OPTIONS: gl.constexpr):
    """Whether step n has pairs that are not visible; steps without are from `first` on, before `until`."""
    border = n >= until
    if OPTIONS.listed or OPTIONS.window.before is not None:
        border = border | (n < first)
    return border


@gluon.jit
def probabilities(s, base, border, key, left, tickets, number, OPTIONS: gl.constexpr):
    """Of products s of keys, from number `key` of their tile on, with a tile of queries; 0 where a pair is not visible,
    which is the case only at a `border`. left: steps of the walk, with this one.
    """
    WINDOW: gl.constexpr = OPTIONS.window
    if OPTIONS.factors.inside is not None:
        s = bounded(s, OPTIONS.factors.inside) * OPTIONS.factors.cap
    p = gl.exp2(gl.fma(s, OPTIONS.factors.exponent, -base[None, :]))
    if border:
        # A ticket's numbers are read where they are needed: there are no registers to keep them in.
        queries, keys, at, low = walk_of(tickets, number)
        _head, m = step_of(left, 0, low, OPTIONS.share)
        i = m * p.shape[1] + gl.arange(0, p.shape[1], gl.SliceLayout(0, p.type.layout))
        j = at + key + gl.arange(0, p.shape[0], gl.SliceLayout(1, p.type.layout))
        # After the last key, k and v are 0, but p might be too large for a product with 0.
        if WINDOW.after is None:
            p = gl.where((j < keys)[:, None], p, 0.0)
        else:
            last = gl.minimum(i + (keys - queries + WINDOW.after), keys - 1)
            p = gl.where(j[:, None] <= last[None, :], p, 0.0)
        if WINDOW.before is not None:
            p = gl.where(j[:, None] >= (i + (keys - queries - WINDOW.before))[None, :], p, 0.0)
        if OPTIONS.listed:
            p = gl.where((i < queries)[None, :], p, 0.0)
    return p


@gluon.jit
def base_of(memory, at, LAYOUT: gl.constexpr):
    """base of the queries of a step; read where it is needed, since there are no registers to keep it in."""
    base = memory.index(anew(at))
    return base.reshape([base.shape[len(base.shape) - 1]]).load(LAYOUT)


@gluon.jit
def deltas_of(memory, border, left, tickets, number, OPTIONS: gl.constexpr, LAYOUT: gl.constexpr):
    """delta of the queries of a step; 0 after those of a sequence, where there are numbers of the next one."""
    QUERIES: gl.constexpr = OPTIONS.queries
    delta = memory.reshape([QUERIES]).load(LAYOUT)
    if OPTIONS.listed:
        if border:
            queries, _keys, _at, low = walk_of(tickets, number)
            _head, m = step_of(left, 0, low, OPTIONS.share)
            delta = gl.where(m * QUERIES + gl.arange(0, QUERIES, LAYOUT) < queries, delta, 0.0)
    return delta


@gluon.jit
def differences(p, dp, base, delta, OPTIONS: gl.constexpr):
    """The gradient at products, without scale: p (dp - delta), and the derivative of a softcap. base and delta have two
    axes, too.

    The bounded product, the tanh of the softcap, is what p was computed from: log2(p) + base, in units of the cap.
    """
    ds = p * (dp - delta)
    if OPTIONS.factors.inside is not None:
        tanh = (lg2(p) + base) * (1.0 / OPTIONS.factors.cap)
        ds = gl.where(p == 0.0, 0.0, ds * (1.0 - tanh * tanh))  # a NaN stays
    return ds


@gluon.jit
def keys_of(tickets, number):
    """Of a ticket, for `at_step`: batch, first step of its sequence's keys, its tile's first key, keys, group."""
    batch, group = field(tickets, number, "batch"), field(tickets, number, "group")
    first_k = field(tickets, number, "first_k")
    return batch, first_k, field(tickets, number, "at"), field(tickets, number, "keys"), group
