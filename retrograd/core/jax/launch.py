"""Runs programs from JAX: compiles each launch with Triton and emits jax's own custom call for Triton kernels.

`jaxlib.gpu_triton` and names of `jax._src` are not public API; of those, only a decoder is used in another file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import compress
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax._src import dispatch
from jax._src.xla_bridge import backends_are_initialized
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from ..arch import Arch, nvidia
from ..program import Array, Descriptor, Launch, Program

TARGET = "triton_kernel_call_ffi"
CREATE_DESCRIPTOR = "create_tma_descriptor_parameter"  # of jaxlib from 0.11.2 on


class Traced(Protocol):
    """One pass of an op, with what a JAX primitive needs. Hashable: equal calls share one compilation."""

    def __hash__(self) -> int: ...

    def check(self, arrays: Sequence[Any]) -> None:
        """Raise for arrays, as abstract values, that the call cannot take."""

    def outputs(self) -> Sequence[Array]:
        """The arrays that the call returns, the same on every path."""

    def program(self, arch: Arch) -> Program | None:
        """The launches for an architecture, with dense inputs; None where the portable path has to run."""

    def portable(self, *arrays: Any) -> Sequence[Any]:
        """The results, computed in plain JAX."""

    def batch(self, arrays: Sequence[Any], axes: Sequence[int | None]) -> tuple[Sequence[Any], Sequence[int]]:
        """The results for a batch of inputs, and the batch axis of each."""

    def divided(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """The function of the arrays that `run(*arrays, call=self)` is, of which XLA may give each device a part."""

    def transpose(self, cotangents: Sequence[Any], arrays: Sequence[Any]) -> Sequence[Any]:
        """For a linear call, the cotangent of each input; None for inputs in which the call is not linear."""


primitive = Primitive("retrograd")
primitive.multiple_results = True


@primitive.def_abstract_eval
def _shapes(*arrays: Any, call: Traced) -> list[Any]:
    """The results' types. They vary over the same manual axes of `shard_map` as the inputs, which all vary alike."""
    call.check(arrays)
    if backends_are_initialized() and jax.default_backend() == "gpu" and jax.device_count() > 1:
        need_devices()
    first = arrays[0]
    return [
        first.update(
            shape=array.shape,
            dtype=jnp.dtype(array.dtype),
            weak_type=False,
            sharding=first.sharding.update(spec=PartitionSpec(*(None for _ in array.shape))),
        )
        for array in call.outputs()
    ]


def need_devices() -> None:
    """Let lowering know the devices, as it has to where XLA divides a call among them."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


@primitive.def_impl
def _eager(*arrays: Any, call: Traced) -> list[Any]:
    with jax.disable_jit(False):  # the primitive only runs under jit
        return _jitted(call)(*arrays)


@lru_cache(maxsize=4096)
def _jitted(call: Traced) -> Callable[..., Any]:
    return jax.jit(partial(primitive.bind, call=call))


def _derivative(arrays: Sequence[Any], tangents: Sequence[Any], *, call: Traced) -> tuple[list[Any], Sequence[Any]]:
    """The results from the kernels, their tangents from the portable formulas."""
    moving = [not isinstance(tangent, ad.Zero) for tangent in tangents]

    def portable(*differentiated: Any) -> Any:
        left = iter(differentiated)
        return _jitted_portable(call)(*(next(left) if m else a for a, m in zip(arrays, moving, strict=True)))

    with jax.disable_jit(False):  # a user's `jax.disable_jit()` would unroll every scan
        pushed = jax.jvp(portable, list(compress(arrays, moving)), list(compress(tangents, moving)))[1]
    return primitive.bind(*arrays, call=call), pushed


@lru_cache(maxsize=4096)
def _jitted_portable(call: Traced) -> Callable[..., Any]:
    return jax.jit(call.portable)


def _transpose(cotangents: Sequence[Any], *arrays: Any, call: Traced) -> Sequence[Any]:
    transposed = call.transpose([ad.instantiate_zeros(cotangent) for cotangent in cotangents], arrays)
    return [found if ad.is_undefined_primal(a) else None for found, a in zip(transposed, arrays, strict=True)]


ad.primitive_jvps[primitive] = _derivative
ad.primitive_transposes[primitive] = _transpose


def _batch(arrays: Sequence[Any], axes: Sequence[int | None], *, call: Traced) -> tuple[Sequence[Any], Sequence[int]]:
    return call.batch(arrays, axes)


batching.primitive_batchers[primitive] = _batch


def _portable(*arrays: Any, call: Traced) -> list[Any]:
    return list(call.portable(*arrays))


def _kernels(*arrays: Any, call: Traced) -> list[Any]:
    arch = arch_of_jax()
    program = None if arch is None or any(array.dtype == "float64" for array in arrays) else call.program(arch)
    if program is None or arch is None:
        return _portable(*arrays, call=call)
    return run(program, arch, arrays)


def _divided(*arrays: Any, call: Traced) -> list[Any]:
    if primitive not in dispatch.prim_requires_devices_during_lowering:
        return _kernels(*arrays, call=call)
    return call.divided(_kernels)(*arrays)


mlir.register_lowering(primitive, mlir.lower_fun(_portable, multiple_results=True))
mlir.register_lowering(primitive, mlir.lower_fun(_divided, multiple_results=True), platform="cuda")


@lru_cache(maxsize=1)
def arch_of_jax() -> Arch | None:
    """The architecture of JAX's CUDA devices, or None where no kernel can run."""
    try:
        import jaxlib.gpu_triton
        import triton  # noqa: F401
    except ImportError:
        return None
    if not hasattr(jaxlib.gpu_triton, "TritonKernelCall"):
        return None
    major, minor = jax.local_devices(backend="cuda")[0].compute_capability.split(".")
    arch = nvidia(int(major), int(minor))
    if arch is None or hasattr(jaxlib.gpu_triton, CREATE_DESCRIPTOR):
        return arch
    return replace(arch, copies_tensors=False)


def run(program: Program, arch: Arch, inputs: Sequence[Any]) -> list[Any]:
    """Emit a program's launches; later launches read the results of earlier ones."""
    from ..build import begin

    begin([program], arch)
    arrays = dict(zip((array.name for array in program.inputs), inputs, strict=True))
    for launch in program.launches:
        if launch.grid:
            arrays.update(_launch(launch, program, arch, arrays))
    # An empty array may not be written by any launch.
    return [arrays[output.name] if output.name in arrays else _empty(output) for output in program.outputs]


def _empty(array: Array) -> Any:
    return jnp.zeros(array.shape, array.dtype)


def _launch(launch: Launch, program: Program, arch: Arch, arrays: dict[str, Any]) -> dict[str, Any]:
    from ..build import build, descriptor_bytes

    reads, writes = program.reads_and_writes(launch, arrays)
    inputs = [arrays[name] if name in arrays else _empty(program.arrays[name]) for name in reads]
    outputs = [jax.ShapeDtypeStruct(program.arrays[name].shape, program.arrays[name].dtype) for name in writes]
    compiled = build(launch, program.arrays, arch)
    size = descriptor_bytes(launch, compiled)
    descriptors = [jax.ShapeDtypeStruct((size,), "uint8")] if size else []
    zeroed = frozenset(name for name in writes if program.arrays[name].zeroed)
    results = jax.ffi.ffi_call(TARGET, outputs + descriptors)(
        *inputs, opaque=_opaque(launch, compiled, program.arrays, arch, bool(size), zeroed)
    )
    return dict(zip(writes, results[: len(writes)], strict=True))


def _descriptor(descriptor: Descriptor, meta: Mapping[str, Any]) -> list[Any]:
    """The parameters that a tensor descriptor becomes: itself, then shape and strides; `meta` is the compiler's."""
    from jaxlib import gpu_triton
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    itself = getattr(gpu_triton, CREATE_DESCRIPTOR)(
        elem_type=TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]],
        swizzle=meta["swizzle"],
        shape=list(descriptor.shape),
        strides=list(descriptor.strides),
        block_shape=list(meta["block_size"]),
        oob_fill=0,
    )
    sizes = [gpu_triton.create_scalar_parameter(size, "i32") for size in descriptor.shape]
    return [itself, *sizes, *(gpu_triton.create_scalar_parameter(stride, "i64") for stride in descriptor.strides)]


def _leaves(kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Type and value of an argument, or of what is in a tuple; constants are left out."""
    if isinstance(kind, tuple):
        for inner, item in zip(kind, value, strict=True):
            yield from _leaves(inner, item)
    elif kind != "constexpr":
        yield kind, value


def _opaque(
    launch: Launch, compiled: Any, arrays: dict[str, Array], arch: Arch, has_descriptors: bool, zeroed: Container[str]
) -> bytes:
    """The launch in JAX's own format: PTX, launch dimensions and parameters in the kernel's order.

    JAX fills the arrays named in `zeroed` with zeros before the launch.
    """
    from jaxlib import gpu_triton

    from ..build import arguments, signature

    metadata = compiled.metadata
    kernel = gpu_triton.TritonKernel(
        metadata.name,
        metadata.num_warps,  # with warp specialization, more than `launch.num_warps`
        1,
        metadata.shared,
        compiled.asm["ptx"],
        compiled.asm["ttir" if "ttir" in compiled.asm else "ttgir"],  # Gluon has no TTIR
        int(arch.name.removeprefix("sm_")),
    )
    parameters = []
    types = dict(signature(launch, arrays).types)
    described = iter(getattr(metadata, "tensordesc_meta", None) or ())
    for name, value in zip(launch.kernel.arg_names, arguments(launch), strict=True):
        if name in launch.descriptors:
            parameters += _descriptor(launch.descriptors[name], next(described))
            continue
        for kind, item in _leaves(types[name], value):
            if isinstance(item, str):
                size = arrays[item].nbytes if item in zeroed else 0
                parameters.append(gpu_triton.create_array_parameter(size, 16 if arrays[item].aligned else 1))
            else:
                parameters.append(gpu_triton.create_scalar_parameter(item, kind))
    if has_descriptors:  # the memory for tensor descriptors follows the kernel's own parameters
        parameters.append(gpu_triton.create_array_parameter(0, 16))
    call = gpu_triton.TritonKernelCall(kernel, launch.grid, 1, 1, parameters)
    return zlib.compress(call.to_proto(metadata.name, b""))
