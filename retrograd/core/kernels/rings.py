"""Rings of stages in shared memory: producers fill them, consumers read and release them."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .named_barriers import arrive, sync


class Ring(NamedTuple):
    """Blocks, and two mbarriers for each stage: block n is in stage n modulo the number of stages.

    A ring whose blocks come with those of another has no `full`; one that warps release one by one has no `empty`.
    """

    blocks: Any
    full: Any
    empty: Any


@gluon.jit
def barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate mbarriers that wait for so many arrivals each."""
    allocated = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(allocated.index(i), count=ARRIVALS)
    return allocated


@gluon.jit
def full_and_empty(STAGES: gl.constexpr, CONSUMERS: gl.constexpr):
    """Two mbarriers for each stage, by turns: between two of one kind the compiler puts a barrier of all threads."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=CONSUMERS)
    return full, empty


@gluon.jit
def ring_of(blocks, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PRODUCERS: gl.constexpr = 1):
    """A ring of the first blocks; so many warp groups release each, and so many arrivals fill it."""
    return Ring(blocks, barriers(STAGES, PRODUCERS), barriers(STAGES, CONSUMERS))


@gluon.constexpr_function
def exponent(size):
    """The logarithm of a power of two; None of other numbers."""
    return size.bit_length() - 1 if size & (size - 1) == 0 else None


@gluon.jit
def stage_of(n, STAGES: gl.constexpr):
    """The stage of block n; of powers of two by a mask: for % the compiler keeps a running counter in a register."""
    if exponent(STAGES) is not None:
        return n & (STAGES - 1)
    return n % STAGES


@gluon.jit
def parity_of(n, STAGES: gl.constexpr):
    """The parity of how many blocks were in the stage of block n before it."""
    if exponent(STAGES) is not None:
        return (n >> exponent(STAGES)) & 1
    return (n // STAGES) & 1


@gluon.jit
def acquire(ring, n):
    """Wait until the stage of block n is empty; returns the stage."""
    STAGES: gl.constexpr = ring.empty.shape[0]
    stage = stage_of(n, STAGES)
    mbarrier.wait(ring.empty.index(stage), parity_of(n, STAGES) ^ 1)
    return stage


@gluon.jit
def wait_full(ring, n):
    """Wait until block n is in its stage."""
    STAGES: gl.constexpr = ring.full.shape[0]
    mbarrier.wait(ring.full.index(stage_of(n, STAGES)), parity_of(n, STAGES))


@gluon.jit
def release(ring, n):
    """This warp group has read block n: its stage may be filled when all consumers have released it."""
    mbarrier.arrive(ring.empty.index(stage_of(n, ring.empty.shape[0])))


@gluon.jit
def acquire_from_warps(ring, n, FIRST: gl.constexpr, THREADS: gl.constexpr):
    """`acquire` of one warp, where consumers release by `release_by_warps`."""
    STAGES: gl.constexpr = ring.full.shape[0]
    stage = stage_of(n, STAGES)
    if n >= STAGES:
        sync(FIRST + stage, THREADS)
    return stage


@gluon.jit
def release_by_warps(ring, n, FIRST: gl.constexpr, THREADS: gl.constexpr):
    """`release` in which no warp waits for the others of its group.

    A stage has a named barrier, number FIRST and on, for all threads of the consumers and the producer's 32. No warp
    arrives twice before the producer has synced: only then is there a next block in the stage to release.
    """
    arrive(FIRST + stage_of(n, ring.full.shape[0]), THREADS)
