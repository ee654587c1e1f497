"""Gluon's names, which differ between the releases of Triton that are supported."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Newer releases call them async_load and barrier.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
block_barrier = getattr(gl, "barrier", None) or gl.thread_barrier

# They also made this method public.
_descriptor = gl.shared_memory_descriptor
if not hasattr(_descriptor, "_reinterpret"):
    _descriptor._reinterpret = _descriptor.reinterpret


@gluon.jit
def fence():
    """What this thread has written before can be seen on the whole GPU before anything that it does after."""
    gl.inline_asm_elementwise("fence.acq_rel.gpu; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
