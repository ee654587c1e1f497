"""Tickets, the tiles that a program takes: one warp draws and writes them into a ring, and the others read them."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.rings import acquire, ring_of, stage_of

TICKETS = gl.constexpr(2)  # in shared memory
NUMBERS = gl.constexpr(16)  # of a ticket, or fewer: shapes are powers of two


class QueryTicket(NamedTuple):
    """A tile of queries: what `tile_of_queries` and `blocks_seen` tell of it. `more` is 1."""

    more: Any
    batch: Any
    head: Any
    first_q: Any
    queries: Any
    first_k: Any
    keys: Any
    at: Any
    outside: Any
    low: Any
    high: Any


class KeyTicket(NamedTuple):
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


@gluon.jit
def ring_of_tickets(CONSUMERS: gl.constexpr):
    """A ring of tickets, which so many groups of warps read."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return ring_of(gl.allocate_shared_memory(gl.int32, [TICKETS, NUMBERS], layout), TICKETS, CONSUMERS)


@gluon.jit
def draw(counter_ptr):
    """The number of the next tile of all programs."""
    return gl.atomic_add(counter_ptr, 1, sem="relaxed")


@gluon.jit
def write(tickets, number, ticket):
    """Write ticket `number` of this program."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    stage = acquire(tickets, number)
    for i in gl.static_range(len(ticket)):
        tickets.blocks.index(stage).slice(i, 1).store(gl.full([1], ticket[i], gl.int32, LINE))
    mbarrier.arrive(tickets.full.index(stage), count=1)


@gluon.jit
def read(tickets, number, i: gl.constexpr):
    """Number i of a ticket; the maximum of one number is this number as a scalar."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(tickets.blocks.index(stage_of(number, TICKETS)).slice(i, 1).load(LINE), 0)


@gluon.constexpr_function
def index_of(kind, name):
    """The index of a number in a kind of ticket."""
    return kind._fields.index(name)


@gluon.jit
def has_tile(tickets, number):
    """Whether ticket `number` has a tile; the last one has only the number 0."""
    return read(tickets, number, 0) == 1


@gluon.jit
def of_queries(tickets, number, NAME: gl.constexpr):
    """A number of a tile of queries, by its name in `QueryTicket`."""
    return read(tickets, number, index_of(QueryTicket, NAME))


@gluon.jit
def of_keys(tickets, number, NAME: gl.constexpr):
    """A number of a tile of keys, by its name in `KeyTicket`."""
    return read(tickets, number, index_of(KeyTicket, NAME))


@gluon.jit
def query_ticket(tickets, number):
    """Ticket `number`, of a tile of queries."""
    batch, head = of_queries(tickets, number, "batch"), of_queries(tickets, number, "head")
    first_q, queries = of_queries(tickets, number, "first_q"), of_queries(tickets, number, "queries")
    first_k, keys = of_queries(tickets, number, "first_k"), of_queries(tickets, number, "keys")
    at, outside = of_queries(tickets, number, "at"), of_queries(tickets, number, "outside")
    low, high = of_queries(tickets, number, "low"), of_queries(tickets, number, "high")
    return QueryTicket(1, batch, head, first_q, queries, first_k, keys, at, outside, low, high)
