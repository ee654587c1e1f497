"""Gluon's names, which differ between the releases of Triton that are supported, and an instruction without one."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

# Newer releases call them async_load, async_store and barrier.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
block_barrier = getattr(gl, "barrier", None) or gl.thread_barrier

# They also made this method public.
_descriptor = gl.shared_memory_descriptor
if not hasattr(_descriptor, "_reinterpret"):
    _descriptor._reinterpret = _descriptor.reinterpret


@gluon.jit
def ex2(x):
    """2**x in one special-function instruction; denormals are flushed."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def lg2(x):
    """The logarithm to base 2 in one special-function instruction, with a relative error below 2^-21; -inf for 0."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def reciprocal(x):
    """1 / x in one special-function instruction, with an error of one unit of the last place; 0 for infinity."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def before_waits(x):
    """x, computed before the waits behind it in the program.

    The assembler moves a wait for products up to where they begin, but not past a store, not even one that never runs:
    no number is above infinity. Of a number whose sign it knows it would remove the store.
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .pred never;
        .reg .b32 address;
        mov.u32 address, 0;
        setp.gt.f32 never, $1, 0f7f800000;
        @never st.shared.f32 [address], $1;
        mov.b32 $0, $1;
        }""",
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )
