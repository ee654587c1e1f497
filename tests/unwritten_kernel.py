"""A kernel that reads shared memory which it has not written."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.testing.fill import PLAIN

SIZE = gl.constexpr(128)


@gluon.jit
def read_unwritten(out_ptr):
    """out = what is in shared memory at the start."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(gl.float32, [SIZE], PLAIN)
    gl.store(out_ptr + gl.program_id(0) * SIZE + gl.arange(0, SIZE, layout), memory.load(layout))
