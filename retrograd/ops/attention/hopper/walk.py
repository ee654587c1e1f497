"""A walk over the tiles of queries that see a tile of keys, by its ticket. Symbols: ../README.md."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .schedule import queries_unmasked
from .tickets import of_keys


@gluon.jit
def walk_of(tickets, number):
    """Of a ticket: queries and keys of its sequence, its first key; the first tile of queries that sees it."""
    queries, keys = of_keys(tickets, number, "queries"), of_keys(tickets, number, "keys")
    return queries, keys, of_keys(tickets, number, "at"), of_keys(tickets, number, "low")


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
    steps = of_keys(tickets, number, "steps")
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
def keys_of(tickets, number):
    """Of a ticket, for `at_step`: batch, first step of its sequence's keys, its tile's first key, keys, group."""
    batch, group = of_keys(tickets, number, "batch"), of_keys(tickets, number, "group")
    first_k = of_keys(tickets, number, "first_k")
    return batch, first_k, of_keys(tickets, number, "at"), of_keys(tickets, number, "keys"), group
