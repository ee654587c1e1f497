"""The tiles that a program takes, one after the other: one warp draws their numbers, the others take them from it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

TICKETS = gl.constexpr(2)  # in shared memory


@gluon.jit
def ring(number: gl.constexpr, arrivals: gl.constexpr):
    """So many mbarriers, each of which waits for so many arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(number):
        mbarrier.init(barriers.index(i), count=arrivals)
    return barriers


@gluon.constexpr_function
def exponent(size):
    """The logarithm of a power of two; None of other numbers."""
    return size.bit_length() - 1 if size & (size - 1) == 0 else None


@gluon.jit
def slot_of(n, SIZE: gl.constexpr):
    """The place, in a ring of so many, of use number n.

    In bits where it can be: from remainders the compiler makes running sums, which take registers.
    """
    if exponent(SIZE) is not None:
        return n & (SIZE - 1)
    else:
        return n % SIZE


@gluon.jit
def parity_of(n, SIZE: gl.constexpr):
    """The parity of how often the place of use number n has been used before."""
    if exponent(SIZE) is not None:
        return (n >> exponent(SIZE)) & 1
    else:
        return (n // SIZE) & 1


@gluon.jit
def tickets_for(takers: gl.constexpr, numbers: gl.constexpr = 1):
    """Places for tickets of so many numbers, which so many groups of warps take."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(gl.int32, [TICKETS, numbers], layout), ring(TICKETS, 1), ring(TICKETS, takers)


@gluon.jit
def draw(counter_ptr):
    """The number of the next tile of all programs."""
    return gl.atomic_add(counter_ptr, 1, sem="relaxed")


@gluon.jit
def give(tickets, turn, numbers):
    """Write ticket number `turn` of this program, when all groups have let go of the one before it in its place."""
    memory, given, taken = tickets
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    place = slot_of(turn, TICKETS)
    mbarrier.wait(taken.index(place), parity_of(turn, TICKETS) ^ 1)
    for i in gl.static_range(len(numbers)):
        memory.index(place).slice(i, 1).store(gl.full([1], numbers[i], gl.int32, LINE))
    mbarrier.arrive(given.index(place), count=1)


@gluon.jit
def wait_for(tickets, turn):
    """Wait until ticket number `turn` is written."""
    _memory, given, _taken = tickets
    mbarrier.wait(given.index(slot_of(turn, TICKETS)), parity_of(turn, TICKETS))


@gluon.jit
def read(tickets, turn, i: gl.constexpr):
    """Number i of a ticket."""
    memory, _given, _taken = tickets
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(memory.index(slot_of(turn, TICKETS)).slice(i, 1).load(LINE), 0)


@gluon.jit
def let_go(tickets, turn):
    """This group reads ticket number `turn` no more."""
    _memory, _given, taken = tickets
    mbarrier.arrive(taken.index(slot_of(turn, TICKETS)))
