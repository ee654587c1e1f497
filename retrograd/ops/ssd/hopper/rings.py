"""The stages of a ring in shared memory: who fills them, and who empties them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def acquire(ring, i, STAGES: gl.constexpr):
    """Wait until the stage for the i-th block is empty."""
    mbarrier.wait(ring.empty.index(i % STAGES), ((i // STAGES) & 1) ^ 1)


@gluon.jit
def wait_full(ring, i, STAGES: gl.constexpr):
    """Wait until the i-th block is in its stage."""
    mbarrier.wait(ring.full.index(i % STAGES), (i // STAGES) & 1)


@gluon.jit
def release(ring, i, STAGES: gl.constexpr):
    """The stage of the i-th block has been read: it may be filled once all who read it say so."""
    mbarrier.arrive(ring.empty.index(i % STAGES))
