"""Gluon's names, which differ between the releases of Triton that are supported."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Newer releases call them async_load and barrier.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
block_barrier = getattr(gl, "barrier", None) or gl.thread_barrier

# They also made this method public.
_descriptor = gl.shared_memory_descriptor
if not hasattr(_descriptor, "_reinterpret"):
    _descriptor._reinterpret = _descriptor.reinterpret
