"""The kernel that fills shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from retrograd.core.arch import KIB

WARPS = 4
ROW = gl.constexpr(KIB // 4)  # numbers of 32 bits; shared memory is a whole number of such rows
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.constexpr_function
def layout_of_row(warp_size):
    """A row's layout over the threads of a CTA."""
    return gl.BlockedLayout([1], [warp_size], [WARPS], [0])


@gluon.jit
def fill(found_ptr, VALUE: gl.constexpr, ROWS: gl.constexpr, WARP_SIZE: gl.constexpr):
    """Write VALUE to all shared memory. It is read back, so that the compiler keeps the writes."""
    LAYOUT: gl.constexpr = layout_of_row(WARP_SIZE)
    memory = gl.allocate_shared_memory(gl.int32, [ROWS, ROW], PLAIN)
    found = gl.zeros([ROW], gl.int32, LAYOUT)
    for i in range(ROWS):
        memory.index(i).store(gl.full([ROW], VALUE, gl.int32, LAYOUT))
    for i in range(ROWS):
        found |= memory.index(i).load(LAYOUT)
    gl.store(found_ptr + gl.program_id(0) * ROW + gl.arange(0, ROW, LAYOUT), found)
