"""Named barriers of NVIDIA's hardware: some threads wait, others only arrive.

Before a thread arrives on an mbarrier for its group, the group's warps wait for each other; here each warp arrives for
itself. Triton has the numbers 0 and 1, and one for each kind of warps from 2 on; 15 is the last.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def assembly(what, threads):
    """An operation on a barrier for so many threads in all."""
    return f"bar.{what} $1, {threads}; mov.b32 $0, $1;"


@gluon.jit
def sync(number, THREADS: gl.constexpr):
    """Arrive, and wait until all have."""
    TEXT: gl.constexpr = assembly("sync", THREADS)
    gl.inline_asm_elementwise(TEXT, "=r,r", [gl.to_tensor(number)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def arrive(number, THREADS: gl.constexpr):
    """Arrive, and go on. The same threads arrive once more only when those that wait have gone on."""
    TEXT: gl.constexpr = assembly("arrive", THREADS)
    gl.inline_asm_elementwise(TEXT, "=r,r", [gl.to_tensor(number)], dtype=gl.int32, is_pure=False, pack=1)
