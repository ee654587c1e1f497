"""Rings of blocks in shared memory, which one warp fills and groups of warps empty."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


class Ring(NamedTuple):
    """Blocks, and two mbarriers for each slot: block n is in slot n modulo the number of slots."""

    blocks: Any
    full: Any
    empty: Any


class Held(NamedTuple):
    """Blocks that are copied with the first block of a ring, and the mbarrier on which their readers arrive."""

    blocks: Any
    empty: Any


@gluon.jit
def barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate mbarriers that wait for so many arrivals each."""
    allocated = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(allocated.index(i), count=ARRIVALS)
    return allocated


@gluon.jit
def ring_of(blocks, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PRODUCERS: gl.constexpr = 1):
    """A ring of the first blocks; so many groups of warps empty each, and so many arrivals fill it."""
    return Ring(blocks, barriers(STAGES, PRODUCERS), barriers(STAGES, CONSUMERS))


@gluon.constexpr_function
def exponent(size):
    """The logarithm of a power of two; None of other numbers."""
    return size.bit_length() - 1 if size & (size - 1) == 0 else None


@gluon.jit
def slot_of(n, STAGES: gl.constexpr):
    """The slot of block n; of powers of two by a mask: for % the compiler keeps a running counter in a register."""
    if exponent(STAGES) is not None:
        return n & (STAGES - 1)
    else:
        return n % STAGES


@gluon.jit
def parity_of(n, STAGES: gl.constexpr):
    """The parity of how many blocks were in the slot of block n before it."""
    if exponent(STAGES) is not None:
        return (n >> exponent(STAGES)) & 1
    else:
        return (n // STAGES) & 1


@gluon.jit
def acquire(ring, n):
    """Wait until there is room for block n; returns its slot."""
    STAGES: gl.constexpr = ring.full.shape[0]
    slot = slot_of(n, STAGES)
    mbarrier.wait(ring.empty.index(slot), parity_of(n, STAGES) ^ 1)
    return slot


@gluon.jit
def wait_for(ring, n):
    """Wait until block n is there."""
    STAGES: gl.constexpr = ring.full.shape[0]
    mbarrier.wait(ring.full.index(slot_of(n, STAGES)), parity_of(n, STAGES))


@gluon.jit
def release(ring, n):
    """This group has read block n."""
    mbarrier.arrive(ring.empty.index(slot_of(n, ring.full.shape[0])))
