"""Tickets, the tiles that a program takes: one warp draws and writes them into a ring, and the others read them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.kernels.rings import acquire, ring_of, stage_of

TICKETS = gl.constexpr(2)  # in shared memory
NUMBERS = gl.constexpr(16)  # of a ticket, or fewer: shapes are powers of two


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
def give(tickets, number, ticket):
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


@gluon.jit
def more(tickets, number):
    """Whether ticket `number` has a tile; the last one has only the number 0."""
    return read(tickets, number, 0) == 1
