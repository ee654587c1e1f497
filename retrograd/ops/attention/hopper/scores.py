"""Attention on Hopper: scores of pairs, their probabilities, and the gradients at them. Symbols: ../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.kernels.gluon import lg2, reciprocal
from retrograd.core.kernels.numerics import LOG2E, forget
from retrograd.core.kernels.rings import stage_of
from retrograd.core.kernels.warpgroups import in_fp32

from .walk import step_of, walk_of

NEVER = gl.constexpr(2**31 - 1)  # no query has this number


@gluon.jit
def bounded(s, FACTOR: gl.constexpr, CAP: gl.constexpr):
    """CAP tanh(s FACTOR) in two special instructions; tanh has an absolute error below 2^-20."""
    return gl.fma(reciprocal(1.0 + gl.exp2(s * (FACTOR * 2.0 * LOG2E))), -2.0 * CAP, CAP)


@gluon.jit
def bias_of(block, LAYOUT: gl.constexpr):
    """A block of the bias of queries and keys in the layout of their products, or of keys alone, (1, keys)."""
    QUERIES: gl.constexpr = block.shape[len(block.shape) - 2]
    KEYS: gl.constexpr = block.shape[len(block.shape) - 1]
    if QUERIES == 1:
        return block.reshape([KEYS]).load(gl.SliceLayout(0, LAYOUT))[None, :]
    else:
        return block.reshape([QUERIES, KEYS]).load(LAYOUT)


@gluon.jit
def read_bias(bias, i, block, queries, keys, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """The bias of queries i and a block of keys from memory; 0 after the queries and keys of the sequence.

    bias: with its pointer at the first query and key of the sequence.
    """
    j = block * KEYS + gl.arange(0, KEYS, gl.SliceLayout(0, LAYOUT))
    places = (i.to(gl.int64) * bias.query)[:, None] + (j.to(gl.int64) * bias.key)[None, :]
    return gl.load(bias.pointer + places, mask=(i < queries)[:, None] & (j < keys)[None, :], other=0.0)


@gluon.jit
def scores(s, i, block, border, queries, keys, OPTIONS: gl.constexpr, bias=None):
    """Scores from products: bounded, and -inf where a key is not visible; of queries i and a block of keys.

    border: whether there are pairs that are not visible. bias: of the pairs, or None.
    """
    KEYS: gl.constexpr = s.shape[1]
    WINDOW: gl.constexpr = OPTIONS.window
    if bias is not None:
        if OPTIONS.factors.inside is not None:
            s = bounded(s, OPTIONS.factors.inside, OPTIONS.factors.cap) + in_fp32(bias)
        else:
            s = gl.fma(s, OPTIONS.factors.cap, in_fp32(bias))
    elif OPTIONS.factors.inside is not None:
        s = bounded(s, OPTIONS.factors.inside, OPTIONS.factors.cap)
    if border:
        j = block * KEYS + gl.arange(0, KEYS, gl.SliceLayout(0, s.type.layout))
        shift = keys - queries
        last = keys - 1
        if WINDOW.after is not None:
            last = gl.minimum(last, i + (shift + WINDOW.after))
            s = gl.where(j[None, :] <= last[:, None], s, float("-inf"))
        else:
            s = gl.where((j <= last)[None, :], s, float("-inf"))
        if WINDOW.before is not None:
            s = gl.where(j[None, :] >= (i + (shift - WINDOW.before))[:, None], s, float("-inf"))
    return s


@gluon.jit
def probabilities(s, base, border, key, query, left, tickets, number, OPTIONS: gl.constexpr):
    """Of products s of keys, from number `key` of their tile on, with queries, from number `query` of theirs on.

    0 where a pair is not visible, which is the case only at a `border`. left: steps of the walk, with this one.
    """
    WINDOW: gl.constexpr = OPTIONS.window
    if OPTIONS.factors.inside is not None:
        s = bounded(s, OPTIONS.factors.inside, OPTIONS.factors.cap)
    p = gl.exp2(gl.fma(s, OPTIONS.factors.exponent, base[None, :]))
    if border:
        # A ticket's numbers are read where they are needed: there are no registers to keep them in.
        queries, keys, at, low = walk_of(tickets, number)
        _head, m = step_of(left, 0, low, OPTIONS.share)
        i = m * OPTIONS.queries + query + gl.arange(0, p.shape[1], gl.SliceLayout(0, p.type.layout))
        j = at + key + gl.arange(0, p.shape[0], gl.SliceLayout(1, p.type.layout))
        # After the last key, k and v are 0, but p might be too large for a product with 0.
        if WINDOW.after is None:
            p = gl.where((j < keys)[:, None], p, 0.0)
        else:
            first = gl.where(j < keys, j - (keys - queries + WINDOW.after), NEVER)
            p = gl.where(first[:, None] <= i[None, :], p, 0.0)
        if WINDOW.before is not None:
            p = gl.where(j[:, None] >= (i + (keys - queries - WINDOW.before))[None, :], p, 0.0)
        if OPTIONS.listed:
            p = gl.where((i < queries)[None, :], p, 0.0)
    return p


@gluon.jit
def base_of(memory, at, query, COUNT: gl.constexpr, LAYOUT: gl.constexpr):
    """base of queries of a step, so many from number `query` on; read where it is needed, since there are no registers
    to keep it in.
    """
    base = memory.index(forget(at))
    return base.reshape([base.shape[len(base.shape) - 1]]).slice(query, COUNT).load(LAYOUT)


@gluon.jit
def deltas_of(
    memory, border, query, COUNT: gl.constexpr, left, tickets, number, OPTIONS: gl.constexpr, LAYOUT: gl.constexpr
):
    """delta of the same; 0 after the queries of a sequence, where there are numbers of the next one."""
    delta = memory.reshape([OPTIONS.queries]).slice(query, COUNT).load(LAYOUT)
    if OPTIONS.listed:
        if border:
            queries, _keys, _at, low = walk_of(tickets, number)
            _head, m = step_of(left, 0, low, OPTIONS.share)
            delta = gl.where(m * OPTIONS.queries + query + gl.arange(0, COUNT, LAYOUT) < queries, delta, 0.0)
    return delta


@gluon.jit
def through_bound(ds, p, base, OPTIONS: gl.constexpr):
    """The gradient at products from that at bounded ones. base has two axes, too.

    The bounded product, the tanh of the softcap, is what p was computed from: log2(p) - base, in units of the cap.
    """
    tanh = (lg2(p) - base) * (1.0 / OPTIONS.factors.cap)
    return gl.where(p == 0.0, 0.0, ds * gl.fma(-tanh, tanh, 1.0))  # a NaN stays


@gluon.jit
def probabilities_from(
    start: gl.constexpr, W: gl.constexpr, s, border, n, end, rings, tickets, number, OPTIONS: gl.constexpr
):
    """p of the keys of group W and the queries of step n, from number `start` on as many as s has. end: of the walk."""
    n = forget(n)
    base = base_of(rings.base, stage_of(n, OPTIONS.q_stages), start, s.shape[1], gl.SliceLayout(0, s.type.layout))
    return probabilities(s, base, border, W * s.shape[0], start, end - n, tickets, number, OPTIONS)


@gluon.jit
def deltas_from(start: gl.constexpr, p, border, n, end, rings, tickets, number, OPTIONS: gl.constexpr):
    """delta of the same queries."""
    memory = rings.delta.index(stage_of(n, OPTIONS.dout_stages))
    COLUMN: gl.constexpr = gl.SliceLayout(0, p.type.layout)
    return deltas_of(memory, border, start, p.shape[1], end - n, tickets, number, OPTIONS, COLUMN)


@gluon.jit
def differences_from(start: gl.constexpr, p, dp, delta, n, rings, OPTIONS: gl.constexpr):
    """ds of the same pairs, rounded."""
    ds = p * (dp - delta[None, :])
    if OPTIONS.factors.inside is not None:
        base = base_of(rings.base, stage_of(n, OPTIONS.q_stages), start, p.shape[1], gl.SliceLayout(0, p.type.layout))
        ds = through_bound(ds, p, base[None, :], OPTIONS)
    return ds.to(rings.q.blocks.dtype)
