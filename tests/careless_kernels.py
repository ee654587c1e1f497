"""Kernels that use shared memory wrongly."""

from __future__ import annotations

from checks.fill import PLAIN
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from retrograd.core.program import Array, Launch, Program

SIZE = gl.constexpr(128)
CTAS = 1000


@gluon.jit
def unwritten(out_ptr):
    """out = what is in shared memory at the start."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(gl.float32, [SIZE], PLAIN)
    gl.store(out_ptr + gl.program_id(0) * SIZE + gl.arange(0, SIZE, layout), memory.load(layout))


@gluon.jit
def unused(out_ptr):
    """out = 0; of two barriers that are initialised, nobody uses the second."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    used = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    left = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(used, count=1)
    mbarrier.init(left.index(0), count=1)
    mbarrier.arrive(used, count=1)
    mbarrier.wait(used, 0)
    gl.store(out_ptr + gl.program_id(0) * SIZE + gl.arange(0, SIZE, layout), gl.zeros([SIZE], gl.float32, layout))


def program(kernel: gluon.GluonJITFunction) -> Program:
    """Runs a kernel."""
    launch = Launch(kernel, grid=CTAS, arrays={"out_ptr": "out"})
    return Program((), (Array("out", (CTAS, SIZE.value), "float32"),), (), (launch,))
